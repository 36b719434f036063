"""The limits of keys: requests, and misses, which are lookups of users that do not exist.

Each key id has its place in a table of fixed size, found by a hash, so every process finds the same
one. A place is never given to another key id. When the table is full (65,536 key ids since the
start, or twice those at the start), a further key id has a place outside of it: its limits then
apply in each process separately.

Where other machines have the same limits (`exchange.py`), each process also counts what keys use.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import blake2b
from mmap import mmap
from typing import NamedTuple

from msgspec import Struct

from tornado_idv.keys.api_key import ApiKey
from tornado_idv.units import Rate, format_rate


class Limit:
    """A named rate; an event is allowed while its TAT is at most ``tolerance`` ahead.

    ``interval`` and ``tolerance`` are in seconds.
    """

    __slots__ = ("interval", "name", "rate", "tolerance")

    def __init__(self, name: str, rate: Rate) -> None:
        self.name = name
        self.rate = rate
        self.interval = rate.seconds / rate.count
        self.tolerance = self.interval * (rate.count - 1)

    def exceeded(self, tat: float, now: float) -> Exceeded | None:
        """Return by how much a further event would exceed the limit, if it would."""
        wait = tat - self.tolerance - now
        return Exceeded(self, wait) if wait > 0 else None


class Exceeded(Struct, frozen=True):
    """The limit that a request exceeds; the next one is allowed in ``wait`` seconds."""

    limit: Limit
    wait: float

    @property
    def retry_after(self) -> int:
        """The wait in whole seconds, rounded up."""
        return math.ceil(self.wait)


_log = logging.getLogger(__name__)

MIN_CAPACITY = 65_536
"""Key ids for which there are places, at least."""
_MAX_PROBES = 1024
"""Places that are tried for a key id; all are taken only when the table is nearly full."""
_FIELDS = 3
"""Numbers of a place: a hash of the key id, the TAT of requests, the TAT of misses."""
_LOG_INTERVAL = 60.0


_shared_limit = lru_cache(maxsize=1024)(Limit)
"""Keys with the same rate share a `Limit`, which saves 260 bytes for each key."""


class KeyUse(NamedTuple):
    """Use of one of its limits by a key, in events."""

    limits: KeyLimits
    limit: Limit
    events: int


_Uses = defaultdict["KeyLimits", list[int]]
"""How many requests and misses each key has used in this process since that was last taken."""


class KeyLimits:
    """The limits of one key."""

    __slots__ = (
        "_at",
        "_clock",
        "_interval",
        "_log_only",
        "_logged_until",
        "_misses",
        "_misses_tolerance",
        "_requests",
        "_tats",
        "_tolerance",
        "_uses",
        "key",
    )

    def __init__(
        self,
        key: ApiKey,
        requests: Limit | None,
        misses: Limit | None,
        *,
        log_only: bool,
        tats: memoryview[float],
        at: int,
        clock: Callable[[], float],
        uses: _Uses | None,
    ) -> None:
        self.key = key
        self._requests = requests
        self._misses = misses
        self._interval = requests.interval if requests else 0.0
        self._tolerance = requests.tolerance if requests else math.inf
        self._misses_tolerance = misses.tolerance if misses else math.inf
        self._log_only = log_only
        self._logged_until = 0.0
        self._tats = tats
        self._at = at  # of requests; that of misses follows
        self._clock = clock
        self._uses = uses  # None where they are not counted

    def rates(self) -> dict[str, str | None]:
        """Return the rates over which requests are refused, as they are configured."""
        misses = None if self._log_only else self._misses
        return {
            "requests": format_rate(self._requests.rate) if self._requests else None,
            "misses": format_rate(misses.rate) if misses else None,
        }

    def acquire(self, now: float | None = None) -> Exceeded | None:
        """Count a request and return ``None``, or return the limit that it exceeds.

        ``now`` is the monotonic time, from a caller that has just read it.
        """
        if now is None:
            now = self._clock()
        tats, at = self._tats, self._at
        tat = tats[at]
        if tat - now > self._tolerance or tats[at + 1] - now > self._misses_tolerance:
            exceeded = self._exceeded(now)
            if exceeded is not None:
                return exceeded
        tats[at] = (tat if tat > now else now) + self._interval  # noqa: FURB136 - max is slower
        if self._uses is not None:
            self._uses[self][0] += 1
        return None

    def uses(self, requests: int, misses: int) -> Iterator[KeyUse]:
        """Yield these numbers of events for the limits that the key has."""
        for limit, events in ((self._requests, requests), (self._misses, misses)):
            if limit is not None and events:
                yield KeyUse(self, limit, events)

    def advance(self, limit: Limit, tat: float) -> None:
        """Move the TAT of one of these limits forward, never back."""
        at = self._at + (limit is self._misses)
        self._tats[at] = max(self._tats[at], tat)

    def bound_wait(self, before: KeyLimits) -> None:
        """Allow one event now, and more as the limit says, if it is not that of ``before``.

        With the wait of a stricter one the key would be blocked for long under a generous one.
        """
        pairs = (before._requests, self._requests), (before._misses, self._misses)
        for at, (old, new) in enumerate(pairs, self._at):
            if new is not None and (old is None or old.rate != new.rate):
                self._tats[at] = min(self._tats[at], self._clock() + new.tolerance)

    def charge_miss(self, now: float | None = None) -> None:
        """Count a lookup without a user, if that is within the limit; ``now`` as for `acquire`."""
        misses = self._misses
        if misses is None:
            return
        if now is None:
            now = self._clock()
        tats, at = self._tats, self._at + 1
        tat = tats[at]
        if misses.exceeded(tat, now) is None:  # or else it is logged only
            tats[at] = max(tat, now) + misses.interval
            if self._uses is not None:
                self._uses[self][1] += 1

    def spent_misses(self) -> Exceeded | None:
        """Return the miss limit if concurrent lookups exhausted it since `acquire`."""
        if self._misses is None or self._log_only:
            return None
        return self._misses.exceeded(self._tats[self._at + 1], self._clock())

    def _exceeded(self, now: float) -> Exceeded | None:
        """Return the limit for which the client has to wait longest."""
        tats, at = self._tats, self._at
        requests = self._requests.exceeded(tats[at], now) if self._requests else None
        misses = self._misses.exceeded(tats[at + 1], now) if self._misses else None
        if misses is not None and self._log_only:
            if now >= self._logged_until:
                self._logged_until = now + _LOG_INTERVAL
                _log.warning(
                    "key %s exceeds its misses (%s): without log_only its lookups would get 429",
                    self.key.id,
                    format_rate(misses.limit.rate),
                )
            misses = None
        if requests is None or (misses is not None and misses.wait > requests.wait):
            return misses
        return requests


class KeyLimiter:
    """The limits of all keys; ``requests`` and ``misses`` are those of keys without their own.

    With ``misses_log_only`` lookups over the general ``misses`` are logged and not refused.
    ``clock`` is monotonic and returns seconds.
    """

    def __init__(
        self,
        requests: Rate | None = None,
        misses: Rate | None = None,
        *,
        misses_log_only: bool = False,
        capacity: int = MIN_CAPACITY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._general = requests, misses, misses_log_only
        self._has_general = requests is not None or misses is not None
        self._capacity = capacity
        self._clock = clock
        table = memoryview(mmap(-1, capacity * _FIELDS * 8))
        self._names, self._tats = table.cast("q"), table.cast("d")
        self._by_digest: dict[bytes, KeyLimits] = {}
        self._before: dict[bytes, KeyLimits] = {}
        """Those of keys that have not been used since the last `configure`."""
        self._beyond: dict[str, memoryview[float]] = {}
        """The TATs of key ids for which the table has no place."""
        self._uses: _Uses | None = None

    def configure(
        self, requests: Rate | None, misses: Rate | None, *, misses_log_only: bool
    ) -> None:
        """Change the general limits; what keys have used up stays used up.

        A key that has used up another limit is allowed one event of the new one.
        """
        if self._general != (requests, misses, misses_log_only):
            self._general = requests, misses, misses_log_only
            self._has_general = requests is not None or misses is not None
            self._before.update(self._by_digest)
            self._by_digest = {}

    def of(self, key: ApiKey) -> KeyLimits | None:
        """Return the limits of a key; ``None`` if it has none."""
        if not self._has_general and key.requests is None and key.misses is None:
            return None
        limits = self._by_digest.get(key.digest)
        return limits if limits is not None and limits.key is key else self._resolve(key)

    def count_uses(self) -> None:
        """From now on, count in this process what keys use; to be called before any key is used."""
        self._uses = defaultdict(lambda: [0, 0])

    def take_uses(self) -> list[KeyUse]:
        """Return what keys have used since the last call, if that is counted."""
        if self._uses is None:
            return []
        taken = [use for limits, counts in self._uses.items() for use in limits.uses(*counts)]
        self._uses.clear()
        return taken

    def advance(self, use: KeyUse, tat: float) -> None:
        """Move a TAT forward; not for a key whose limits were replaced after its use."""
        limits = use.limits
        if self._by_digest.get(limits.key.digest, limits) is limits:
            limits.advance(use.limit, tat)

    def _resolve(self, key: ApiKey) -> KeyLimits:
        tats, at = self._find_place(key.id)
        requests, misses, misses_log_only = self._general
        requests, misses = key.requests or requests, key.misses or misses
        limits = KeyLimits(
            key,
            _shared_limit("requests", requests) if requests else None,
            _shared_limit("misses", misses) if misses else None,
            log_only=key.misses_log_only if key.misses else misses_log_only,
            tats=tats,
            at=at,
            clock=self._clock,
            uses=self._uses,
        )
        before = self._by_digest.get(key.digest) or self._before.pop(key.digest, None)
        if before is not None:
            limits.bound_wait(before)
        if len(self._by_digest) + len(self._before) >= self._capacity:
            self._by_digest.clear()  # of removed keys, for the most part
            self._before.clear()
        self._by_digest[key.digest] = limits
        return limits

    def _find_place(self, key_id: str) -> tuple[memoryview[float], int]:
        """Return where the TATs of a key id are.

        Two processes that see different new keys in the same microsecond could take the same
        place; that their hashes begin a probe there too is too improbable for a lock.
        """
        names = self._names
        name = int.from_bytes(blake2b(key_id.encode(), digest_size=8).digest()) >> 1 or 1
        for probe in range(min(_MAX_PROBES, self._capacity)):
            at = (name + probe) % self._capacity * _FIELDS
            if names[at] in (0, name):
                names[at] = name
                return self._tats, at + 1
        if not self._beyond:
            _log.warning(
                "%d keys have had limits since the start: those of further keys apply in each "
                "process separately, until a restart",
                self._capacity,
            )
        if key_id not in self._beyond:
            self._beyond[key_id] = memoryview(bytearray(16)).cast("d")
        return self._beyond[key_id], 0

"""The limits of keys: requests, and misses, which are lookups of users that do not exist.

Each key id has its place in a table of fixed size, found by a hash, so every process finds the same
one. A place is never given to another key id. When the table is full (262,144 key ids since the
start), a further key id has a place outside of it: its limits then apply in each process
separately.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from mmap import mmap

from msgspec import Struct

from tornado_idv.keys.api_key import ApiKey
from tornado_idv.units import Rate, format_rate

_log = logging.getLogger(__name__)

_CAPACITY = 262_144
"""Key ids for which there are places; the system allocates those that are used."""
_MAX_PROBES = 1024
"""Places that are tried for a key id; all are taken only when the table is nearly full."""
_FIELDS = 3
"""Numbers of a place: a hash of the key id, the TAT of requests, and the TAT of misses."""
_LOG_INTERVAL = 60.0


class Limit:
    """A named rate; an event is allowed while its TAT is at most ``tolerance`` ahead.

    ``interval`` and ``tolerance`` are in seconds.
    """

    def __init__(self, name: str, rate: Rate) -> None:
        self.name = name
        self.rate = rate
        self.interval = rate.seconds / rate.count
        self.tolerance = self.interval * (rate.count - 1)

    def exceeded(self, tat: float, now: float, events: int = 1) -> Exceeded | None:
        """Return by how much further events would exceed the limit, if they would."""
        wait = (events - 1) * self.interval - self.tolerance
        if tat > now:
            wait = tat + wait - now
        return Exceeded(self, wait) if wait > 0 else None


_limit = lru_cache(maxsize=1024)(Limit)
"""Keys with the same rate share a `Limit`, which saves 260 bytes for each key."""


class Exceeded(Struct, frozen=True):
    """The limit that a request exceeds; the next one is allowed in ``wait`` seconds."""

    limit: Limit
    wait: float

    @property
    def retry_after(self) -> int:
        """The wait in whole seconds, rounded up."""
        return math.ceil(self.wait)


class KeyLimits(Struct, eq=False):
    """The limits of one key; ``tats`` has its TATs from ``at`` on.

    Over ``misses`` with ``log_only``, lookups are logged and not refused.
    """

    key: ApiKey
    requests: Limit | None
    misses: Limit | None
    log_only: bool
    tats: memoryview[float]
    at: int
    clock: Callable[[], float]
    logged_until: float = 0.0

    def rates(self) -> dict[str, str | None]:
        """Return the rates over which requests are refused, as they are configured."""
        refusing = {"requests": self.requests, "misses": None if self.log_only else self.misses}
        return {name: format_rate(each.rate) if each else None for name, each in refusing.items()}

    def acquire(self, lookups: int = 1) -> Exceeded | None:
        """Count lookups and return ``None``, or return the limit that they exceed.

        Each may turn out to be a miss, so there must be room for as many of these.
        """
        now = self.clock()
        tats, at, requests, misses = self.tats, self.at, self.requests, self.misses
        tat = tats[at]
        if (
            lookups > 1
            or (requests is not None and tat - now > requests.tolerance)
            or (misses is not None and tats[at + 1] - now > misses.tolerance)
        ):
            exceeded = self._exceeded(now, lookups)
            if exceeded is not None:
                return exceeded
        if requests is not None:
            tats[at] = (tat if tat > now else now) + lookups * requests.interval  # noqa: FURB136 - max is slower
        return None

    def bound_wait(self) -> None:
        """Let the key wait for one interval at most.

        The TATs may be of a stricter limit, which was in force before and would block the key for
        long; by these limits alone they are never further ahead.
        """
        for at, limit in enumerate((self.requests, self.misses), self.at):
            if limit is not None:
                longest = self.clock() + limit.tolerance + limit.interval
                self.tats[at] = min(self.tats[at], longest)

    def charge_miss(self) -> None:
        """Count a lookup without a user, if that is within the limit."""
        misses = self.misses
        if misses is not None:
            tats, at, now = self.tats, self.at + 1, self.clock()
            if misses.exceeded(tats[at], now) is None:  # or else it is logged only
                tats[at] = max(tats[at], now) + misses.interval

    def spent_misses(self) -> Exceeded | None:
        """Return the miss limit if concurrent lookups exhausted it since `acquire`."""
        if self.misses is None or self.log_only:
            return None
        return self.misses.exceeded(self.tats[self.at + 1], self.clock())

    def _exceeded(self, now: float, lookups: int) -> Exceeded | None:
        """Return the limit for which the client has to wait longest."""
        tats, at = self.tats, self.at
        requests = self.requests.exceeded(tats[at], now, lookups) if self.requests else None
        misses = self.misses.exceeded(tats[at + 1], now, lookups) if self.misses else None
        if misses is not None and self.log_only:
            if now >= self.logged_until:
                self.logged_until = now + _LOG_INTERVAL
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
        capacity: int = _CAPACITY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._general = requests, misses, misses_log_only
        self._has_general = requests is not None or misses is not None
        self._capacity = capacity
        self._clock = clock
        table = memoryview(mmap(-1, capacity * _FIELDS * 8))
        self._names, self._tats = table.cast("q"), table.cast("d")
        self._by_digest: dict[bytes, KeyLimits] = {}
        self._beyond: dict[str, memoryview[float]] = {}
        """The TATs of key ids for which the table has no place."""

    def configure(
        self, requests: Rate | None, misses: Rate | None, *, misses_log_only: bool
    ) -> None:
        """Change the general limits; what keys have used up stays used up.

        A key that has used up a stricter limit waits for one interval of the new one at most.
        """
        if self._general != (requests, misses, misses_log_only):
            self._general = requests, misses, misses_log_only
            self._has_general = requests is not None or misses is not None
            self._by_digest = {}

    def of(self, key: ApiKey) -> KeyLimits | None:
        """Return the limits of a key; ``None`` if it has none."""
        if not self._has_general and key.requests is None and key.misses is None:
            return None
        limits = self._by_digest.get(key.digest)
        return limits if limits is not None and limits.key is key else self._resolve(key)

    def _resolve(self, key: ApiKey) -> KeyLimits:
        general_requests, general_misses, log_only = self._general
        requests, misses = key.requests or general_requests, key.misses or general_misses
        tats, at = self._find_place(key.id)
        limits = KeyLimits(
            key,
            _limit("requests", requests) if requests else None,
            _limit("misses", misses) if misses else None,
            key.misses_log_only if key.misses else log_only,
            tats,
            at,
            self._clock,
        )
        limits.bound_wait()
        if len(self._by_digest) >= self._capacity:
            self._by_digest.clear()  # of removed keys, for the most part
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

"""Rate limits per key, and per client address for failed authentication.

The algorithm is GCRA (generic cell rate algorithm). It stores one number for each limit, the
*theoretical arrival time* (TAT), in seconds of a monotonic clock. Each event moves the TAT forward
by one interval. A limit of 100 events allows an event while the TAT is at most 99 intervals ahead
of the clock. So it allows a burst of 100 events, and then one event per interval. As a float, the
TAT is exact to 15 ns for the first four years of uptime.

The library `limits` (5.8, in memory) takes several times as long for one decision.

The TATs are in shared memory, so processes forked later share their limits. They are changed
without a lock: simultaneous events of two processes may count as one event.
"""

from __future__ import annotations

import logging
import secrets
import socket
import struct
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
"""Number of places for key ids in the table. Unused places take no memory."""
_MAX_PROBES = 1024
"""Maximum number of places to try for a key id. Earlier places may belong to other key ids."""
_FIELDS = 3
"""Numbers in each place of the table: hash of the key id, TAT of requests, TAT of misses."""
_LOG_INTERVAL = 60.0
"""Minimum seconds between two warnings about the ``log_only`` limit of one key."""


class Limit:
    """A named rate. An event is allowed while the TAT is at most ``tolerance`` ahead of the clock.

    ``interval`` and ``tolerance`` are in seconds.
    """

    def __init__(self, name: str, rate: Rate) -> None:
        self.name = name
        self.rate = rate
        self.log_only = rate.log_only
        self.interval = rate.seconds / rate.count
        self.tolerance = self.interval * (rate.count - 1)

    def exceeded(self, tat: float, now: float, events: int = 1) -> Exceeded | None:
        """Return an `Exceeded` if these events would exceed the limit, otherwise ``None``."""
        wait = (events - 1) * self.interval - self.tolerance
        if tat > now:
            wait = tat + wait - now
        return Exceeded(self, wait) if wait > 0 else None


_limit = lru_cache(maxsize=1024)(Limit)
"""Keys with the same rate share a `Limit`. This saves 260 bytes for each key."""


class Exceeded(Struct, frozen=True):
    """An exceeded limit. The next request is allowed in ``wait`` seconds."""

    limit: Limit
    wait: float


class KeyLimits(Struct, eq=False):
    """The limits of one key.

    ``tats[at]`` is the TAT of requests, and ``tats[at + 1]`` the TAT of misses. Only ``misses`` may
    be `Rate.log_only`.
    """

    key: ApiKey
    requests: Limit | None
    misses: Limit | None
    tats: memoryview[float]
    at: int
    clock: Callable[[], float]
    logged_until: float = 0.0

    def rates(self) -> dict[str, str | None]:
        """Return the enforced rates by name. A rate that is only logged is ``None``."""
        limits = {"requests": self.requests, "misses": self.misses}
        return {
            name: format_rate(each.rate) if each and not each.log_only else None
            for name, each in limits.items()
        }

    def acquire(self, lookups: int = 1) -> Exceeded | None:
        """Return the exceeded limit. If none is exceeded, count the lookups and return ``None``.

        Each lookup may be a miss. So the limit of misses must have room for all of them, but only
        `charge_miss` counts misses.
        """
        now, tats, at = self.clock(), self.tats, self.at
        requests = self.requests.exceeded(tats[at], now, lookups) if self.requests else None
        misses = self.misses.exceeded(tats[at + 1], now, lookups) if self.misses else None
        if misses is not None and misses.limit.log_only:
            if now >= self.logged_until:
                self.logged_until = now + _LOG_INTERVAL
                _log.warning(
                    "key %s exceeds its limit of misses (%s): "
                    "without log_only its lookups would get 429",
                    self.key.id,
                    format_rate(misses.limit.rate),
                )
            misses = None
        if requests is None and misses is None and self.requests is not None:
            tats[at] = max(tats[at], now) + lookups * self.requests.interval
        if requests is None or (misses is not None and misses.wait > requests.wait):
            return misses
        return requests

    def bound_wait(self) -> None:
        """Reduce the TATs, so that the key waits for at most one interval of its limits.

        After a reload, the TATs may still be far ahead, because a stricter limit has moved them.
        They would block the key for a long time. Without a reload, no wait exceeds one interval.
        """
        for at, limit in enumerate((self.requests, self.misses), self.at):
            if limit is not None:
                self.tats[at] = min(self.tats[at], self.clock() + limit.tolerance + limit.interval)

    def charge_miss(self) -> None:
        """Count a miss, unless the limit of misses is exceeded."""
        misses = self.misses
        if misses is not None:
            tats, at, now = self.tats, self.at + 1, self.clock()
            # The limit may be exceeded with log_only, or after concurrent lookups.
            if misses.exceeded(tats[at], now) is None:
                tats[at] = max(tats[at], now) + misses.interval

    def spent_misses(self) -> Exceeded | None:
        """Return the miss limit if concurrent lookups exhausted it since `acquire`."""
        if self.misses is None or self.misses.log_only:
            return None
        return self.misses.exceeded(self.tats[self.at + 1], self.clock())


class KeyLimiter:
    """The limits of keys: requests, and misses (lookups that return 404 or 422).

    Each key id has a place in a table of fixed size. Every process finds the same place by a hash
    of the key id. A place is never reused for another key id. The table is full after 262,144 key
    ids since the start. Limits of further key ids apply in each process separately. ``clock``
    returns monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._general: tuple[Rate | None, Rate | None] = None, None
        self._clock = clock
        table = memoryview(mmap(-1, _CAPACITY * _FIELDS * 8))
        self._names, self._tats = table.cast("q"), table.cast("d")
        self._by_digest: dict[bytes, KeyLimits] = {}
        self._beyond: dict[str, memoryview[float]] = {}
        """The TATs of key ids for which the table has no place."""

    def configure(self, requests: Rate | None, misses: Rate | None) -> None:
        """Set the limits of keys without own limits. Events that were counted before still count.

        Afterwards, a key over its limit waits for at most one interval of the new limit.
        """
        if self._general != (requests, misses):
            self._general = requests, misses
            self._by_digest = {}

    def of(self, key: ApiKey) -> KeyLimits | None:
        """Return the limits of a key, or ``None`` if no limit applies to it."""
        requests, misses = self._general
        if not (requests or misses or key.requests or key.misses):
            return None
        limits = self._by_digest.get(key.digest)
        return limits if limits is not None and limits.key is key else self._resolve(key)

    def _resolve(self, key: ApiKey) -> KeyLimits:
        requests, misses = key.requests or self._general[0], key.misses or self._general[1]
        tats, at = self._find_place(key.id)
        limits = KeyLimits(
            key,
            _limit("requests", requests) if requests else None,
            _limit("misses", misses) if misses else None,
            tats,
            at,
            self._clock,
        )
        limits.bound_wait()
        if len(self._by_digest) >= _CAPACITY:
            self._by_digest.clear()  # most entries are of removed keys
        self._by_digest[key.digest] = limits
        return limits

    def _find_place(self, key_id: str) -> tuple[memoryview[float], int]:
        """Return the array and the index of the TATs of a key id.

        There is no lock. Two processes could give one place to two new keys, but only within the
        same microsecond, and only if both hashes select this place. This is too rare to matter.
        """
        names = self._names
        # A signed number of 8 bytes, never 0, which marks a free place.
        name = int.from_bytes(blake2b(key_id.encode(), digest_size=8).digest()) >> 1 or 1
        for probe in range(min(_MAX_PROBES, _CAPACITY)):
            at = (name + probe) % _CAPACITY * _FIELDS
            if names[at] in (0, name):
                names[at] = name
                return self._tats, at + 1
        if not self._beyond:
            _log.warning(
                "the shared memory for limits is full after %d keys; until a restart, limits of "
                "further keys apply in each process separately",
                _CAPACITY,
            )
        if key_id not in self._beyond:
            self._beyond[key_id] = memoryview(bytearray(16)).cast("d")
        return self._beyond[key_id], 0


class FailedAuthLimiter:
    """Rate limit for requests without a valid key, by client address, in memory of fixed size.

    The table is a count-min sketch. A keyed hash gives each address one place in each of two rows.
    An address is limited only if both places exceed the limit. Two addresses rarely share both
    places: if 1,000 addresses guess keys, 0.02 % of the other addresses are affected. An affected
    client gets 429 instead of 401. Requests with a valid key are never affected.

    An IPv6 client usually has a whole /64, so a /64 counts as one address.

    Before `configure`, there is no limit. ``clock`` returns monotonic seconds.
    """

    def __init__(
        self, *, places: int = 65_536, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit: Limit | None = None
        self._places = places
        self._clock = clock
        self._secret = secrets.token_bytes(16)  # the key of the hash
        self._tats = memoryview(mmap(-1, 2 * places * 8)).cast("d")

    def configure(self, rate: Rate | None) -> None:
        """Set the rate, or no limit. A change discards the failures counted so far."""
        if rate != (self._limit and self._limit.rate):
            self._limit = Limit("failed_auth", rate) if rate else None
            self._tats.cast("B")[:] = bytes(self._tats.nbytes)

    def acquire(self, address: str) -> Exceeded | None:
        """Return an exceeded limit. Without one, count a failure and return ``None``.

        ``address`` is in canonical form. An IPv4-mapped address is written as IPv4.
        """
        if (limit := self._limit) is None:
            return None
        now, tats = self._clock(), self._tats
        first, second = self._find_places(address)
        tat = max(min(tats[first], tats[second]), now)
        if (exceeded := limit.exceeded(tat, now)) is not None:
            return exceeded
        tat += limit.interval
        # A higher TAT belongs to another address with the same place: it must not decrease.
        tats[first] = max(tats[first], tat)
        tats[second] = max(tats[second], tat)
        return None

    def _find_places(self, address: str) -> tuple[int, int]:
        counted = address.encode()
        if address.count(":") > 1:  # IPv6; the address of a Unix socket is "unix:"
            counted = socket.inet_pton(socket.AF_INET6, address)[:8]
        hashed = blake2b(counted, digest_size=8, key=self._secret).digest()
        first, second = struct.unpack("<II", hashed)
        return first % self._places, self._places + second % self._places

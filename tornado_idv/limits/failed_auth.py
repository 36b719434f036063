"""The limit of failed authentication per client address, in memory of fixed size.

The table is a count-min sketch. A keyed hash gives each address one place in each of two rows. An
address is limited only if both places exceed the limit. Two addresses rarely share both places: if
1,000 addresses guess keys, 0.02 % of the other addresses are affected. An affected client gets 429
instead of 401. Requests with a valid key are never affected.

An IPv6 client usually has a whole /64, so a /64 counts as one address.
"""

import secrets
import socket
import struct
import time
from collections.abc import Callable
from hashlib import blake2b
from mmap import mmap

from tornado_idv.limits.key_limits import Exceeded, Limit
from tornado_idv.units import Rate


class FailedAuthLimiter:
    """Rate limit for requests without a valid key, by client address.

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

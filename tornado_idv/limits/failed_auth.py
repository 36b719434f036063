"""The limit of failed authentication per client address, in memory of fixed size.

The table is a count-min sketch: an address has one place in each of two rows, found by a keyed
hash, and is limited only if both are over the limit. Addresses share places, but one that shares
both with addresses that guess keys is rare: with 1,000 of them, 0.02 % of the other addresses. Even
then it gets 429 where it would have got 401; a request with a good key is not limited here.

An IPv6 client usually has a whole /64, so that is what is counted.
"""

from __future__ import annotations

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
    """Limits requests without a good key, by their client's address; without a rate, none.

    ``clock`` is monotonic and returns seconds; ``secret`` is the key of the hash.
    """

    def __init__(
        self,
        rate: Rate | None,
        *,
        places: int = 65_536,
        clock: Callable[[], float] = time.monotonic,
        secret: bytes | None = None,
    ) -> None:
        self._limit: Limit | None = None
        self._places = places
        self._clock = clock
        self._secret = secrets.token_bytes(16) if secret is None else secret
        self._tats = memoryview(mmap(-1, 2 * places * 8)).cast("d")
        self.configure(rate)

    def configure(self, rate: Rate | None) -> None:
        """Change the rate; failures that were counted with another one are discarded."""
        if rate != (self._limit and self._limit.rate):
            self._limit = Limit("failed_auth", rate) if rate else None
            self._tats.cast("B")[:] = bytes(self._tats.nbytes)

    def acquire(self, address: str) -> Exceeded | None:
        """Count a failure and return ``None``, or return the limit that it exceeds.

        ``address`` is in canonical form; IPv4 within IPv6 is written as IPv4.
        """
        limit = self._limit
        if limit is None:
            return None
        now, tats = self._clock(), self._tats
        first, second = self._find_places(address)
        tat = max(min(tats[first], tats[second]), now)
        exceeded = limit.exceeded(tat, now)
        if exceeded is not None:
            return exceeded
        tat += limit.interval
        # The higher number of the two may be that of an address which shares the place.
        tats[first] = max(tats[first], tat)
        tats[second] = max(tats[second], tat)
        return None

    def _find_places(self, address: str) -> tuple[int, int]:
        counted = address.encode()
        if address.count(":") > 1:  # that of a Unix socket is "unix:"
            counted = socket.inet_pton(socket.AF_INET6, address)[:8]
        hashed = blake2b(counted, digest_size=8, key=self._secret).digest()
        first, second = struct.unpack("<II", hashed)
        return first % self._places, self._places + second % self._places

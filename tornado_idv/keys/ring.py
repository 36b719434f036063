"""All keys, in memory by digest, so that authentication does no I/O."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import cycle
from math import copysign
from mmap import mmap
from operator import itemgetter
from random import sample

from tornado_idv.errors import InvalidKey, UndeterminedKey
from tornado_idv.keys.api_key import ApiKey, RejectedKey, never_before
from tornado_idv.keys.token import MAX_LENGTH, digest, is_token68


class LatestTime:
    """The latest wall time that any process of a service has seen.

    ``seconds`` holds that one number, in Unix time; minus infinity before a time was seen. It is in
    memory that processes forked later share, and outlives each of them. They change it without a
    lock: of two simultaneous changes, the one by the earlier time may remain.
    """

    def __init__(self) -> None:
        self.seconds = memoryview(mmap(-1, 8)).cast("d")
        self.seconds[0] = -math.inf

    def advance(self, now: float) -> float:
        """Return the later of this and ``now``, which is the latest time from now on."""
        self.seconds[0] = latest = max(now, self.seconds[0])
        return latest


_DECOYS = cycle(
    sample([ApiKey("", i.to_bytes(32), expires=never_before()) for i in range(800)], 800)
)
"""In place of a key that does not exist: such a token is rejected by the same steps as one that is
not valid. A single decoy would stay in the processor's cache, as would some in the order of their
memory, and be rejected 0.4 µs faster (benchmarks/key_timing.py, CPython 3.11)."""


_NOTICE_INTERVAL = 0.1
"""Seconds between two times that `KeyRing.find` notices: a write for each hit, to memory that
processes share, would cost more."""


class KeyRing:
    """Authenticates tokens by their digests: the configured keys, and those of the key store.

    ``clock`` returns Unix time in seconds. Where it steps back, keys that had expired by
    ``latest``, the latest time seen, stay expired; rings of several processes share it.
    """

    def __init__(
        self,
        keys: Iterable[ApiKey],
        clock: Callable[[], float] = time.time,
        latest: LatestTime | None = None,
    ) -> None:
        self._keys = {key.digest: key for key in keys}
        self.clock = clock
        self.is_current = True
        """Whether no other key can be valid: the key store, if there is one, was read."""
        self._latest = latest or LatestTime()
        self.last_used: dict[str, float] = {}
        """When each key was last used, by its id, in Unix time."""

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all keys, also of those that are not valid."""
        return self._overview[0]

    def expirations(self) -> Mapping[str, float]:
        """Return when each key that expires does, by its id, in Unix time; the earliest first.

        Of a key with several tokens, that is when the last of them expires.
        """
        return self._overview[1]

    @cached_property
    def _overview(self) -> tuple[frozenset[str], dict[str, float]]:
        """Both, computed once per change: with 100,000 keys it takes 0.2 s."""
        times: dict[str, float] = {}
        for key in self._keys.values():
            times[key.id] = max(key.expires, times.get(key.id, -math.inf))
        finite = (each for each in times.items() if math.isfinite(each[1]))
        return frozenset(times), dict(sorted(finite, key=itemgetter(1, 0)))

    def merged(self, stored: Iterable[ApiKey], configured: Sequence[ApiKey]) -> dict[bytes, ApiKey]:
        """Return the map of these keys, for `replace`.

        A stored key with the id or the token of a configured one is left out. A configured key
        that is equal stays the same object, by which limits and packet cache know it; so do those
        of a store (see `KeyStore.api_keys`). May be called in another thread.
        """
        ids, known = {key.id for key in configured}, self._keys
        keys = {key.digest: key for key in stored if key.id not in ids}
        for key in configured:
            keys[key.digest] = known[key.digest] if known.get(key.digest) == key else key
        return keys

    def replace(self, keys: dict[bytes, ApiKey]) -> None:
        """Replace all keys at once by a map that `merged` returned."""
        self._keys = keys
        vars(self).pop("_overview", None)

    def notice_time(self) -> None:
        """Look at the clock: what has expired by now stays expired.

        For regular calls, also without requests.
        """
        self._latest.advance(self.clock())

    def find(self, computed: bytes, now: float) -> ApiKey | None:
        """Return the key whose token has this digest, if it is valid now; it counts as used.

        ``now`` is the time of ``clock``. Whatever is not valid takes the same time.
        """
        key = self._keys.get(computed, next(_DECOYS))
        latest = self._latest.seconds[0]
        if now > latest + _NOTICE_INTERVAL:
            latest = self._latest.advance(now)
        # As `ApiKey.is_valid`, without a call, which takes as long as all of this.
        if copysign(1.0, now - key.not_before) <= copysign(1.0, max(now, latest) - key.expires):
            return None
        self.last_used[key.id] = now
        return key

    def authenticate(self, scheme: str, token: str) -> ApiKey:
        """Return the key with this token; raise `InvalidKey` if there is none that is valid now.

        That is an `UndeterminedKey` where the key store may have one.

        ``scheme`` is that of the credentials in lower case, or `NO_SCHEME` if there were none.

        The time of a dictionary lookup by digest does not depend on how much of a token is
        right, so no constant-time comparison is needed. Whatever is rejected takes the same path,
        also a token that is malformed or absent: one digest, of bounded input, and one lookup.
        """
        computed = digest(token[: MAX_LENGTH + 1])
        key = self._keys.get(computed, next(_DECOYS))
        now = self.clock()
        latest = self._latest.advance(now)
        if not key.is_valid(now, latest):
            raise self._rejection(RejectedKey(key, latest, computed, scheme, token))
        if scheme != "bearer" or not is_token68(token):
            raise InvalidKey("malformed")
        self.last_used[key.id] = latest
        return key

    def _rejection(self, error: RejectedKey) -> InvalidKey:
        """Return the error, or that it is not certain while the key store cannot be read."""
        return error if self.is_current or not error.is_well_formed else UndeterminedKey(error)

"""All keys, in memory by digest, so that authentication does no I/O."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter

from tornado_idv.errors import InvalidKey, UndeterminedKey
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.token import digest, is_token68


class KeyRing:
    """Authenticates tokens by their digests: the configured keys, and those of the key store.

    ``clock`` returns Unix time in seconds.
    """

    def __init__(self, keys: Iterable[ApiKey], clock: Callable[[], float] = time.time) -> None:
        self._keys = {key.digest: key for key in keys}
        self.clock = clock
        self.is_complete = True
        """Whether no other key can be valid: the key store, if there is one, was read."""
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
        that is equal stays the same object, by which limits know it; so do those of a
        store (see `KeyStore.api_keys`). May be called in another thread.
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

    def find(self, computed: bytes) -> ApiKey | None:
        """Return the key whose token has this digest, if it is valid now; it counts as used."""
        key, now = self._keys.get(computed), self.clock()
        if key is None or not key.is_valid(now):
            return None
        self.last_used[key.id] = now
        return key

    def authenticate(self, scheme: str, token: str) -> ApiKey:
        """Return the key with this token; raise `InvalidKey` if there is none that is valid now.

        That is an `UndeterminedKey` where the key store may have one. ``scheme`` is that of the
        credentials in lower case, empty if there were none.

        The time of a dictionary lookup by digest does not depend on how much of a token is
        right, so no constant-time comparison is needed.
        """
        if not scheme:
            raise InvalidKey("missing")
        if scheme != "bearer" or not is_token68(token):
            raise InvalidKey("malformed")
        computed = digest(token)
        valid = self.find(computed)
        if valid is not None:
            return valid
        key = self._keys.get(computed)
        if not self.is_complete:
            raise UndeterminedKey("the key store cannot be read", key.id if key else None)
        if key is None:
            raise InvalidKey("unknown")
        is_expired = key.expires <= self.clock()
        raise InvalidKey(key.rejected or ("expired" if is_expired else "not valid yet"), key.id)

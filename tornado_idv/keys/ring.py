"""All keys in memory, by digest. So authentication needs no I/O."""

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
    """Authenticates tokens by their digests, with configured keys and keys of the key store.

    ``clock`` returns Unix time in seconds.
    """

    def __init__(self, keys: Iterable[ApiKey], clock: Callable[[], float] = time.time) -> None:
        self._keys = {key.digest: key for key in keys}
        self.clock = clock
        self.is_complete = True
        """False while the key store cannot be read: then an unknown key may be valid."""
        self.last_used: dict[str, float] = {}
        """Unix time of the last use, by the id of the key."""

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all keys, valid or not."""
        return self._overview[0]

    def expirations(self) -> Mapping[str, float]:
        """Return the expiry of keys in Unix time, by id, the earliest first.

        Keys without expiry are left out. For several tokens, the last expiry counts.
        """
        return self._overview[1]

    @cached_property
    def _overview(self) -> tuple[frozenset[str], dict[str, float]]:
        """Ids and expirations, computed once per change: with 100,000 keys this takes 0.2 s."""
        times: dict[str, float] = {}
        for key in self._keys.values():
            times[key.id] = max(key.expires, times.get(key.id, -math.inf))
        finite = (each for each in times.items() if math.isfinite(each[1]))
        return frozenset(times), dict(sorted(finite, key=itemgetter(1, 0)))

    def merged(self, stored: Iterable[ApiKey], configured: Sequence[ApiKey]) -> dict[bytes, ApiKey]:
        """Return the map of these keys, for `replace`.

        Configured keys take precedence over stored keys with the same id or token. An equal
        configured key stays the same object: limits compare keys by identity. `KeyStore.api_keys`
        does the same for stored keys. May be called in another thread.
        """
        ids, known = {key.id for key in configured}, self._keys
        keys = {key.digest: key for key in stored if key.id not in ids}
        for key in configured:
            keys[key.digest] = known[key.digest] if known.get(key.digest) == key else key
        return keys

    def replace(self, keys: dict[bytes, ApiKey]) -> None:
        """Replace all keys by a map from `merged`."""
        self._keys = keys
        vars(self).pop("_overview", None)

    def find(self, computed: bytes) -> ApiKey | None:
        """Return the valid key for the digest of a token, or ``None``. The key counts as used."""
        key, now = self._keys.get(computed), self.clock()
        if key is None or not key.is_valid(now):
            return None
        self.last_used[key.id] = now
        return key

    def authenticate(self, scheme: str, token: str) -> ApiKey:
        """Return the valid key with this token. Raises `InvalidKey` if there is none.

        While the key store cannot be read, it raises `UndeterminedKey` instead. ``scheme`` is the
        scheme of the credentials in lower case, or empty without credentials.

        No constant-time comparison is needed: a dictionary lookup by digest takes as long for a
        nearly right token as for any other.
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

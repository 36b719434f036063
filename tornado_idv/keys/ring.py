"""All keys in memory, by digest, so that authentication needs no I/O."""

import heapq
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.errors import InvalidKey, UndeterminedKey
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.token import digest, is_token68

_MAX_SHOWN = 1000


class KeyOverview(Struct, frozen=True):
    """The number of keys, and the expiry times of at most 1,000 keys by id, in Unix time.

    The key that expires next comes first, and expired keys come last. When it expires, at the time
    ``until``, the overview is outdated. For a key with several tokens, the last expiry counts.
    """

    count: int
    expirations: Mapping[str, float]
    until: float


class KeyRing:
    """Authenticates tokens by their digests, with configured keys and keys of the key store.

    ``clock`` returns Unix time in seconds.
    """

    def __init__(self, keys: Iterable[ApiKey], clock: Callable[[], float] = time.time) -> None:
        self._keys = {key.digest: key for key in keys}
        self.clock = clock
        self.complete_until = math.inf
        """Until this monotonic time, an unknown key is invalid. Later, until the next read of the
        store, it may be a new key in the store."""
        self.last_used: dict[str, float] = {}
        """The Unix time of the last use of each key, by the key's id."""
        self._in_thread = DaemonThread("key overview")
        self._overview: KeyOverview | None = None

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all keys, valid or not."""
        return frozenset(key.id for key in self._keys.values())

    async def overview(self) -> KeyOverview:
        """Return an overview. A thread computes it, because 100,000 keys take 0.1 s."""
        keys, now, overview = self._keys, self.clock(), self._overview
        if overview is None or now >= overview.until:
            overview = await self._in_thread(_overview_of, keys, now)
            if keys is self._keys:
                self._overview = overview
        return overview

    def merged(self, stored: Iterable[ApiKey], configured: Sequence[ApiKey]) -> dict[bytes, ApiKey]:
        """Return a map of these keys by digest, for `replace`. May be called in any thread.

        Configured keys take precedence over stored keys with the same id or token. An unchanged
        configured key stays the same object, because limits compare keys by identity.
        `KeyStore.api_keys` does the same for stored keys.
        """
        ids, known = {key.id for key in configured}, self._keys
        keys = {key.digest: key for key in stored if key.id not in ids}
        for key in configured:
            keys[key.digest] = known[key.digest] if known.get(key.digest) == key else key
        return keys

    def replace(self, keys: dict[bytes, ApiKey]) -> None:
        """Replace all keys by the keys in a result of `merged`."""
        self._keys, self._overview = keys, None

    def find(self, computed: bytes) -> ApiKey | None:
        """Return the valid key for a token's digest, or ``None``. A found key counts as used."""
        key, now = self._keys.get(computed), self.clock()
        if key is None or not key.is_valid(now):
            return None
        self.last_used[key.id] = now
        return key

    def authenticate(self, scheme: str, token: str) -> ApiKey:
        """Return the valid key with this token. Raises `InvalidKey` if there is none.

        After the time `complete_until`, a well-formed token raises `UndeterminedKey` instead: its
        key may be valid in the store. ``scheme`` is in lower case, and empty without credentials.

        No constant-time comparison is needed, because a dictionary lookup by digest takes as long
        for a nearly right token as for any other.
        """
        if not scheme:
            raise InvalidKey("missing")
        if scheme != "bearer" or not is_token68(token):
            raise InvalidKey("malformed")
        computed = digest(token)
        if valid := self.find(computed):
            return valid
        key = self._keys.get(computed)
        if time.monotonic() >= self.complete_until:
            raise UndeterminedKey("the key store cannot be read", key.id if key else None)
        if key is None:
            raise InvalidKey("unknown")
        is_expired = key.expires <= self.clock()
        raise InvalidKey(key.rejected or ("expired" if is_expired else "not valid yet"), key.id)


def _overview_of(keys: Mapping[bytes, ApiKey], now: float) -> KeyOverview:
    """Compute the overview at ``now``, in short steps, so that the event loop can run between."""
    times: dict[str, float] = {}
    for key in keys.values():
        times[key.id] = max(key.expires, times.get(key.id, -math.inf))
    finite = [(at <= now, at, key_id) for key_id, at in times.items() if math.isfinite(at)]
    shown = {key_id: at for _, at, key_id in heapq.nsmallest(_MAX_SHOWN, finite)}
    until = min((at for at in shown.values() if at > now), default=math.inf)
    return KeyOverview(len(times), shown, until)

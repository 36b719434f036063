"""All keys, in memory by digest, so that a request does no I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tornado_idv.errors import InvalidKey
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.token import digest, is_token68


class KeyRing:
    """Tells which key a digest is of. ``clock`` gives Unix time in seconds."""

    def __init__(self, keys: Iterable[ApiKey], clock: Callable[[], float] = time.time) -> None:
        self._keys = {key.digest: key for key in keys}
        self._clock = clock

    def holds(self, key: ApiKey) -> bool:
        """Whether this very key is here still, and good now."""
        return self._keys.get(key.digest) is key and key.is_good(self._clock())

    def authenticate(self, digest: bytes) -> ApiKey:
        """The key with this digest; raises `InvalidKey` unless it is known and good now.

        Looking a digest up takes no longer for a near miss than for any other, so
        there is nothing to compare in constant time.
        """
        key = self._keys.get(digest)
        if key is None:
            raise InvalidKey("unknown")
        key.check(self._clock())
        return key


def digest_of(token: str) -> bytes:
    """The digest of what a caller sent; raises `InvalidKey` unless it is a token68."""
    if not is_token68(token):
        raise InvalidKey("malformed")
    return digest(token)

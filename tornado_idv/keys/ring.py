"""All keys, in memory by digest, so that authentication does no I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tornado_idv.errors import InvalidKey
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.token import digest, is_token68


class KeyRing:
    """Authenticates tokens by their digests. ``clock`` returns Unix time in seconds."""

    def __init__(self, keys: Iterable[ApiKey], clock: Callable[[], float] = time.time) -> None:
        self._keys = {key.digest: key for key in keys}
        self._clock = clock

    def holds(self, key: ApiKey) -> bool:
        """Return whether this key has not been replaced or removed, and is valid now."""
        return self._keys.get(key.digest) is key and key.is_valid(self._clock())

    def authenticate(self, digest: bytes) -> ApiKey:
        """Return the key with this digest; raise `InvalidKey` if it is unknown or not valid now.

        The time of a dictionary lookup by digest does not depend on how much of a token is
        right, so no constant-time comparison is needed.
        """
        key = self._keys.get(digest)
        if key is None:
            raise InvalidKey("unknown")
        key.check(self._clock())
        return key


def digest_of(token: str) -> bytes:
    """Return the digest of a token; raise `InvalidKey` unless it is a token68."""
    if not is_token68(token):
        raise InvalidKey("malformed")
    return digest(token)

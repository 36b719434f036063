"""Authentication by the ``Authorization`` header. No other source of a key is accepted."""

from __future__ import annotations

from collections.abc import Mapping

from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing


def authenticate(headers: Mapping[str, str], keys: KeyRing) -> ApiKey:
    """Return the client's key, from its bearer token (RFC 6750, section 2.1).

    Raises `InvalidKey` unless there is exactly one ``Authorization`` header with a valid key.
    """
    return keys.authenticate(*credentials(headers.get("Authorization", "")))


def credentials(authorization: str) -> tuple[str, str]:
    """Return the scheme in lower case, and the token, of an ``Authorization`` header."""
    scheme, _, token = authorization.partition(" ")
    return scheme.lower(), token.lstrip(" ")

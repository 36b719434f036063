"""Authentication by the ``Authorization`` header. No other source of a key is accepted."""

from __future__ import annotations

from tornado.web import RequestHandler

from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing


class BearerAuthMixin(RequestHandler):
    """A handler that authenticates its client by a bearer token (RFC 6750, section 2.1)."""

    def authenticate(self, keys: KeyRing) -> ApiKey:
        """Return the client's key.

        Raises `InvalidKey` unless there is exactly one ``Authorization`` header with a valid key.
        """
        return keys.authenticate(*credentials(self.request.headers.get("Authorization", "")))


def credentials(authorization: str) -> tuple[str, str]:
    """Return the scheme in lower case, and the token, of an ``Authorization`` header."""
    scheme, _, token = authorization.partition(" ")
    return scheme.lower(), token.lstrip(" ")

"""The client's key, from the ``Authorization`` header and from nowhere else."""

from __future__ import annotations

from tornado.web import RequestHandler

from tornado_idv.keys.api_key import NO_CREDENTIALS, ApiKey
from tornado_idv.keys.ring import KeyRing


class BearerAuthMixin(RequestHandler):
    """Authenticates its client (RFC 6750, section 2.1)."""

    def authenticate(self, keys: KeyRing) -> ApiKey:
        """Return the client's key.

        Raises `InvalidKey` unless there is exactly one ``Authorization`` header with a key that
        is valid now.
        """
        # The constant is parsed like a header, so that a 401 for an absent one takes as long.
        authorization = self.request.headers.get("Authorization", NO_CREDENTIALS)
        return keys.authenticate(*credentials(authorization))


def credentials(authorization: str) -> tuple[str, str]:
    """Return the scheme, in lower case, and the token of an ``Authorization`` header.

    For a request without one it is to be `NO_CREDENTIALS`.
    """
    scheme, _, token = authorization.partition(" ")
    return scheme.lower(), token.lstrip(" ")

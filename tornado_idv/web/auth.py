"""The client's key, from the ``Authorization`` header and from nowhere else."""

from __future__ import annotations

from tornado_idv.errors import InvalidKey
from tornado_idv.keys.api_key import NO_CREDENTIALS, ApiKey, Scope
from tornado_idv.limits.key_limits import KeyLimits
from tornado_idv.web.errors import ApiError, ApiException, rate_limited
from tornado_idv.web.handler import JsonHandler

_SCOPE_FIELD = 'Www-Authenticate: Bearer error="insufficient_scope", scope="{}"\r\n'
"""RFC 6750, section 3.1."""


class AuthenticatedHandler(JsonHandler):
    """Authenticates its client (RFC 6750, section 2.1), and limits its rate."""

    limits: KeyLimits | None = None
    """The limits of the client's key, if it has any."""

    def require_key(self, scope: Scope) -> ApiKey:
        """Return the client's key if it is valid, has this scope, and is within its limits.

        Raises `InvalidKey` unless there is exactly one ``Authorization`` header with a key that
        is valid now, and `ApiException` if the key lacks the scope or a limit is exceeded.
        """
        # Not by `fields`: then a 401 for absent credentials takes 0.1 µs longer than the others
        # (benchmarks/key_timing.py, CPython 3.11).
        authorization = self.exchange.head.headers.get("Authorization", NO_CREDENTIALS)
        try:
            key = self.services.keys.authenticate(*credentials(authorization))
        except InvalidKey as error:
            self._limit_failures(error)
            raise
        self.key_id = key.id
        self.exchange.authenticated = True
        if scope not in key.scopes:
            raise ApiException(ApiError.SCOPE, _SCOPE_FIELD.format(scope))
        self.limits = self.services.key_limiter.of(key)
        exceeded = self.limits.acquire() if self.limits else None
        if exceeded is not None:
            raise rate_limited(exceeded)
        return key

    def _limit_failures(self, error: InvalidKey) -> None:
        limiter = self.services.failed_auth
        exceeded = limiter.acquire(self.exchange.client_address) if limiter else None
        if exceeded is not None:
            self.key_id = error.key_id
            raise rate_limited(exceeded)


def credentials(authorization: str) -> tuple[str, str]:
    """Return the scheme, in lower case, and the token of an ``Authorization`` header.

    For a request without one it is to be `NO_CREDENTIALS`.
    """
    scheme, _, token = authorization.partition(" ")
    return scheme.lower(), token.lstrip(" ")

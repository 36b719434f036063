"""Handlers that require a key. They check its scope and its limits."""

import json
import math

from tornado_idv.errors import InvalidKey, UndeterminedKey
from tornado_idv.http.exchange import Exchange
from tornado_idv.keys.api_key import ApiKey, Scope
from tornado_idv.limits.key_limits import KeyLimits
from tornado_idv.log_format import format_time
from tornado_idv.web.content_negotiation import check_accept
from tornado_idv.web.errors import ApiError, ApiException, rate_limited
from tornado_idv.web.fast_path.known_heads import KnownHeads, Read
from tornado_idv.web.handler import ApiHandler
from tornado_idv.web.lookups import Operation

_SCOPE_FIELD = 'Www-Authenticate: Bearer error="insufficient_scope", scope="{}"\r\n'
"""The header line of a 403, with the scope that the key lacks (RFC 6750, section 3.1)."""


class AuthenticatedHandler(ApiHandler):
    """A handler that requires a key. It checks the scope of the key and charges its limits."""

    def accepted_key(self, scope: Scope | None = None) -> ApiKey:
        """Return the client's key.

        Raises `InvalidKey` without a valid key. Raises `ApiException` if the key lacks ``scope``,
        or if the client exceeds the limit of failed authentication.
        """
        try:
            key = self.authenticate(self.api.keys)
        except InvalidKey as error:
            self.key_id = error.key_id
            limiter = None if isinstance(error, UndeterminedKey) else self.api.failed_auth
            exceeded = limiter.acquire(self.request.remote_ip or "") if limiter else None
            if exceeded is not None:
                raise rate_limited(exceeded) from None
            raise
        self.key_id = key.id
        connection = self.request.connection
        if isinstance(connection, Exchange):
            connection.authenticated = True
        if scope is not None and scope not in key.scopes:
            raise ApiException(ApiError.SCOPE, _SCOPE_FIELD.format(scope))
        return key

    def limits_within(self, key: ApiKey, lookups: int = 1) -> KeyLimits | None:
        """Charge lookups to a key. Return the limits of the key, or ``None`` if it has none.

        Raises `ApiException` if a limit is exceeded.
        """
        limits = self.api.key_limiter.of(key)
        exceeded = limits.acquire(lookups) if limits else None
        if exceeded is not None:
            raise rate_limited(exceeded)
        return limits

    def learn_head(self, operation: Operation, read: Read) -> None:
        """Let the fast path recognize the head of the accepted request in later requests."""
        heads: KnownHeads | None = self.settings.get("known_heads")
        connection = self.request.connection
        if heads and self.key_id and isinstance(connection, Exchange):
            heads.learn(connection.head, self.key_id, operation, read)


class KeyHandler(AuthenticatedHandler):
    """Responds with a description of the client's own key, without a query to a backend."""

    route = "key"

    def get(self) -> None:
        key = self.accepted_key()
        limits = self.limits_within(key)
        check_accept(self.request.headers)
        record = {
            "status": "ok",
            "id": key.id,
            "scopes": sorted(key.scopes),
            "expires": format_time(key.expires) if math.isfinite(key.expires) else None,
            "limits": limits.rates() if limits else {"requests": None, "misses": None},
        }
        self.finish(json.dumps(record, separators=(",", ":")))

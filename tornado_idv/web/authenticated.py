"""Handlers of clients with a key: its scope, its limits, and what a client may know of it."""

from __future__ import annotations

import json
import math

from tornado_idv.errors import InvalidKey
from tornado_idv.http.exchange import Exchange
from tornado_idv.keys.api_key import ApiKey, Scope
from tornado_idv.limits.key_limits import KeyLimits
from tornado_idv.log_format import format_time
from tornado_idv.web.auth import BearerAuthMixin
from tornado_idv.web.content_negotiation import check_accept
from tornado_idv.web.errors import ApiError, ApiException, rate_limited
from tornado_idv.web.handler import ApiHandler

_SCOPE_FIELD = 'Www-Authenticate: Bearer error="insufficient_scope", scope="{}"\r\n'
"""RFC 6750, section 3.1."""


class AuthenticatedHandler(BearerAuthMixin, ApiHandler):
    """Checks the client's key and charges its limits."""

    def accepted_key(self, scope: Scope | None = None) -> ApiKey:
        """Return the client's key; raise `ApiException` if it lacks ``scope``.

        Without a valid key, raise `InvalidKey`, or `ApiException` over the limit ``failed_auth``.
        """
        try:
            key = self.authenticate(self.api.keys)
        except InvalidKey as error:
            self.key_id = error.key_id
            limiter = self.api.failed_auth
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
        """Charge lookups to the limits of a key; return these, or ``None`` without limits.

        Raises `ApiException` over a limit.
        """
        limits = self.api.key_limiter.of(key)
        exceeded = limits.acquire(lookups) if limits else None
        if exceeded is not None:
            raise rate_limited(exceeded)
        return limits


class KeyHandler(AuthenticatedHandler):
    """Describes the client's own key; no backend is queried."""

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

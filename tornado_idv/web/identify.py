"""The two operations: identify a user by profile URL or nickname, and by card number."""

from __future__ import annotations

from typing import ClassVar

from tornado_idv.errors import InvalidFormat, InvalidKey
from tornado_idv.http.exchange import Exchange
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.limits.key_limits import KeyLimits
from tornado_idv.model import Query
from tornado_idv.web.auth import BearerAuthMixin
from tornado_idv.web.content_negotiation import check_media_types
from tornado_idv.web.errors import ApiError, ApiException, rate_limited
from tornado_idv.web.handler import ApiHandler
from tornado_idv.web.lookups import (
    IDENTIFY_CARD,
    IDENTIFY_URL,
    Operation,
    Result,
    result_of,
    result_of_miss,
)
from tornado_idv.web.packet_cache import Accepted

_SCOPE_FIELD = 'Www-Authenticate: Bearer error="insufficient_scope", scope="{}"\r\n'
"""RFC 6750, section 3.1."""


class IdentifyHandler(BearerAuthMixin, ApiHandler):
    """Checks the key and its limits, then the media types, then the body, then looks up."""

    allowed = ("POST",)
    operation: ClassVar[Operation]

    async def post(self) -> None:
        key = self._accepted_key()
        limits = self._limits_within(key)
        check_media_types(self.request.headers)
        try:
            query = self.query = self.operation.query(self.body, self.services.identifiers)
        except InvalidFormat:
            if limits is not None:
                limits.charge_miss()
            raise
        connection = self.request.connection
        if isinstance(connection, Exchange):
            connection.cacheable = Accepted(self.operation, key)
        result = await self._look_up(query, limits)
        self.cache, self.backend, self.failure = result.cache, result.backend, result.failure
        self.set_status(result.status)
        self.finish(result.body)

    async def _look_up(self, query: Query, limits: KeyLimits | None) -> Result:
        directory = self.services.directory
        answer = directory.get_cached(query)
        if answer is not None:
            return result_of(answer, limits, "hit")
        self.cache = "miss"
        return result_of_miss(await directory.start(query), limits)

    def _accepted_key(self) -> ApiKey:
        """Return the client's key if it has the scope of the operation."""
        try:
            key = self.authenticate(self.services.keys)
        except InvalidKey as error:
            limiter = self.services.failed_auth
            exceeded = limiter.acquire(self.request.remote_ip or "") if limiter else None
            if exceeded is not None:
                self.key_id = error.key_id
                raise rate_limited(exceeded) from None
            raise
        self.key_id = key.id
        connection = self.request.connection
        if isinstance(connection, Exchange):
            connection.authenticated = True
        if self.operation.scope not in key.scopes:
            raise ApiException(ApiError.SCOPE, _SCOPE_FIELD.format(self.operation.scope))
        return key

    def _limits_within(self, key: ApiKey) -> KeyLimits | None:
        """Return the limits of a key, if it has any, once this request is charged to them."""
        limits = self.services.key_limiter.of(key)
        exceeded = limits.acquire() if limits else None
        if exceeded is not None:
            raise rate_limited(exceeded)
        return limits


class IdentifyUrlHandler(IdentifyHandler):
    """``{"input": "@nickname"}`` or ``{"input": "{profile_site}/m/nickname"}``."""

    operation = IDENTIFY_URL
    route = operation.route


class IdentifyCardHandler(IdentifyHandler):
    """``{"card_number": "digits"}``."""

    operation = IDENTIFY_CARD
    route = operation.route

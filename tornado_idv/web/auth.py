"""The client's key, from the ``Authorization`` header and from nowhere else."""

from __future__ import annotations

import re
from typing import cast

from tornado.httputil import HTTPHeaders

from tornado_idv.errors import InvalidKey
from tornado_idv.keys.api_key import ApiKey, Scope
from tornado_idv.keys.ring import digest_of
from tornado_idv.web.errors import ApiError, ApiException
from tornado_idv.web.handler import JsonHandler

_BEARER = re.compile(r"bearer +([!-~]+)", re.ASCII | re.IGNORECASE)
_SCOPE_FIELD = 'Www-Authenticate: Bearer error="insufficient_scope", scope="{}"\r\n'
"""RFC 6750, section 3.1."""


class BearerAuthMixin:
    """Authenticates the client of a `JsonHandler` (RFC 6750, section 2.1)."""

    def require_key(self, scope: Scope) -> ApiKey:
        """Return the client's key if it is valid and has this scope.

        Raises `InvalidKey` unless there is exactly one ``Authorization`` header with a key that
        is valid now, and `ApiException` if the key lacks the scope.
        """
        handler = cast(JsonHandler, self)
        token = _bearer_token(handler.request.headers)
        key = handler.services.keys.authenticate(digest_of(token))
        handler.key_id = key.id
        handler.exchange.authenticated = True
        if scope not in key.scopes:
            raise ApiException(ApiError.SCOPE, _SCOPE_FIELD.format(scope))
        return key


def _bearer_token(headers: HTTPHeaders) -> str:
    values = headers.get_list("Authorization")
    match = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    if match is None:
        raise InvalidKey("malformed")
    return match[1]

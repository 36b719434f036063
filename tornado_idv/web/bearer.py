"""The caller's key, from the ``Authorization`` header and from nowhere else."""

from __future__ import annotations

import re
from typing import cast

from tornado.httputil import HTTPHeaders

from tornado_idv.errors import InvalidKey
from tornado_idv.keys.api_key import ApiKey, Scope
from tornado_idv.keys.ring import KeyRing, digest_of
from tornado_idv.web.handler import JsonHandler
from tornado_idv.web.refusals import Refusal, Refused

_BEARER = re.compile(r"bearer +([!-~]+)", re.ASCII | re.IGNORECASE)


class BearerAuthMixin:
    """Lets a `JsonHandler` know its caller (RFC 6750, 2.1).

    Needs the application setting ``keys``, a `KeyRing`.
    """

    def require_key(self, scope: Scope) -> ApiKey:
        """The caller's key, if it is good and has this scope.

        Raises `InvalidKey` unless there is exactly one ``Authorization`` header with a
        key that is good now, and `Refused` if the key lacks the scope.
        """
        handler = cast(JsonHandler, self)
        keys: KeyRing = handler.settings["keys"]
        wire = handler.wire
        digest = wire.understood.digest
        if digest is None:
            digest = wire.understood.digest = digest_of(_token(handler.request.headers))
        key = keys.authenticate(digest)
        handler.key_id, wire.has_key = key.id, True
        if scope not in key.scopes:
            raise Refused(Refusal.SCOPE)
        return key


def _token(headers: HTTPHeaders) -> str:
    values = headers.get_list("Authorization")
    match = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    if match is None:
        raise InvalidKey("malformed")
    return match[1]

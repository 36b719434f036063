"""Every answer that is not a user, as the one error record."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping

from tornado_idv.errors import InvalidFormat, InvalidKey, LookupFailed

_HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"WWW-Authenticate": "Bearer"},
    503: {"Retry-After": "1"},
}


class Refusal(enum.Enum):
    """An error record: its code, its HTTP status and its message."""

    BAD_REQUEST = "bad_request", 400, "Bad request"
    TOKEN = "token_invalid_or_expired", 401, "Token invalid or expired"
    SCOPE = "insufficient_scope", 403, "The key may not do this"
    NOT_FOUND = "not_found", 404, "User not found"
    NO_SUCH_ROUTE = "no_such_route", 404, "No such route"
    METHOD = "method_not_allowed", 405, "Method not allowed"
    NOT_ACCEPTABLE = "not_acceptable", 406, "Only application/json can be answered"
    REQUEST_TIMEOUT = "request_timeout", 408, "The request took too long to arrive"
    BODY_TOO_LARGE = "body_too_large", 413, "Body too large"
    URI_TOO_LONG = "uri_too_long", 414, "URI too long"
    MEDIA_TYPE = "unsupported_media_type", 415, "Only JSON in UTF-8 can be read"
    EXPECTATION = "expectation_failed", 417, "Expectation failed"
    FORMAT = "invalid_format", 422, "Invalid format"
    HEADERS_TOO_LARGE = "headers_too_large", 431, "Headers too large"
    INTERNAL = "internal", 500, "Internal error"
    UNAVAILABLE = "backend_unavailable", 503, "Could not tell, try again"
    OVERLOADED = "overloaded", 503, "Overloaded, try again"

    def __init__(self, code: str, status: int, message: str) -> None:
        self.code = code
        self.status = status
        record = {"status": "error", "code": code, "message": message}
        self.body = json.dumps(record, separators=(",", ":")).encode()
        self.headers = _HEADERS.get(status, {})
        """Those that go with this refusal and not with every answer."""


class Refused(Exception):
    """Ends a request with a refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


_BY_ERROR: dict[type[BaseException], Refusal] = {
    InvalidFormat: Refusal.FORMAT,
    InvalidKey: Refusal.TOKEN,
    LookupFailed: Refusal.UNAVAILABLE,
}


def refusal_for(error: BaseException) -> Refusal:
    """What an error is answered with."""
    if isinstance(error, Refused):
        return error.refusal
    if type(error) in _BY_ERROR:
        return _BY_ERROR[type(error)]
    for kind, refusal in _BY_ERROR.items():
        if isinstance(error, kind):
            return refusal
    return Refusal.INTERNAL

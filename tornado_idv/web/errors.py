"""The error responses of the API. All errors have the same JSON members."""

import enum
import json
import math
from collections.abc import Mapping

from tornado.web import HTTPError

from tornado_idv.errors import Broken, InvalidFormat, InvalidKey, LookupFailed, UndeterminedKey
from tornado_idv.limits import Exceeded

_FIELDS: Mapping[int, str] = {
    401: "Www-Authenticate: Bearer\r\n",  # the spelling is part of the contract
    503: "Retry-After: 1\r\n",
}


class ApiError(enum.Enum):
    """An error response, with its code, HTTP status and message."""

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
    RATE_LIMITED = "rate_limited", 429, "Too many requests"
    HEADERS_TOO_LARGE = "headers_too_large", 431, "Headers too large"
    INTERNAL = "internal", 500, "Internal error"
    OVERLOADED = "overloaded", 503, "Overloaded, try again"
    UNAVAILABLE = "backend_unavailable", 503, "Could not tell, try again"
    BROKEN = "backend_unavailable", 503, "Could not be determined"

    def __init__(self, code: str, status: int, message: str) -> None:
        self.code = code
        self.status = status
        self.message = message
        record = {"status": "error", "code": code, "message": message}
        self.body = json.dumps(record, separators=(",", ":")).encode()
        self.fields = _FIELDS.get(status, "")
        """Additional header lines of this response, each with its line break."""


class ApiException(HTTPError):
    """Raised to end a request with an error response.

    ``reason`` is written to the log. If the error is in `REASONS`, ``reason`` is also sent to the
    client. ``fields`` are additional header lines, each with its line break.
    """

    def __init__(self, error: ApiError, fields: str = "", reason: str | None = None) -> None:
        super().__init__(error.status, reason)
        self.error = error
        self.fields = fields


REASONS: Mapping[ApiError, Mapping[str, str]] = {
    ApiError.MEDIA_TYPE: {
        "content_type": "Content-Type must be JSON in UTF-8",
        "content_encoding": "the body must not be compressed",
    },
    ApiError.FORMAT: InvalidFormat.REASONS,
}
"""For each error with several causes: the tokens of ``X-Error-Reason`` and their meanings."""
_BY_EXCEPTION: dict[type[BaseException], ApiError] = {
    InvalidFormat: ApiError.FORMAT,
    UndeterminedKey: ApiError.UNAVAILABLE,  # must precede its base class
    InvalidKey: ApiError.TOKEN,
    Broken: ApiError.BROKEN,
    LookupFailed: ApiError.UNAVAILABLE,
}
BY_STATUS = {error.status: error for error in reversed(ApiError)}
"""The error for each HTTP status of a rejection by the HTTP server. For 503: `OVERLOADED`."""


def rate_limited(exceeded: Exceeded) -> ApiException:
    """Return the exception for a request that exceeds a limit.

    Its header fields follow RFC 9110, section 10.2.3, and draft-ietf-httpapi-ratelimit-headers.
    """
    name, rate, seconds = exceeded.limit.name, exceeded.limit.rate, math.ceil(exceeded.wait)
    fields = (
        f"Retry-After: {seconds}\r\n"
        f'RateLimit-Policy: "{name}";q={rate.count};w={rate.seconds:.0f}\r\n'
        f'RateLimit: "{name}";r=0;t={seconds}\r\n'
    )
    return ApiException(ApiError.RATE_LIMITED, fields, name)


def error_for(exception: BaseException) -> ApiError:
    """Return the error for an exception. An unexpected exception gives `ApiError.INTERNAL`."""
    if isinstance(exception, ApiException):
        return exception.error
    if isinstance(exception, HTTPError) and exception.status_code == ApiError.METHOD.status:
        return ApiError.METHOD
    for kind, error in _BY_EXCEPTION.items():
        if isinstance(exception, kind):
            return error
    return ApiError.INTERNAL

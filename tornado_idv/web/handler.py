"""Base classes of all handlers: JSON, the client's key, its scope and limits; small handlers."""

import json
import math
from asyncio import CancelledError
from collections.abc import Awaitable
from functools import cached_property
from time import monotonic
from typing import Any, ClassVar

from tornado.web import RequestHandler, stream_request_body

from tornado_idv.errors import InvalidKey, UndeterminedKey
from tornado_idv.http.exchange import Exchange
from tornado_idv.keys.api_key import ApiKey, Scope
from tornado_idv.keys.ring import KeyRing
from tornado_idv.limits import KeyLimits
from tornado_idv.log_format import format_time
from tornado_idv.model import Query
from tornado_idv.trace_context import Trace, parse_trace
from tornado_idv.web.access_log import LoggedRequest, record_response
from tornado_idv.web.errors import ApiError, ApiException, rate_limited
from tornado_idv.web.fast_path.known_heads import KnownHeads, Read
from tornado_idv.web.json_body import check_accept
from tornado_idv.web.lookups import ApiContext, Operation, log_unexpected, result_of_error
from tornado_idv.web.response import ECHOED, FIELDS, Result, new_request_id, valid_request_id

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods logged by name. Any other method is arbitrary text, so it is logged as ``other``."""
_SCOPE_FIELD = 'Www-Authenticate: Bearer error="insufficient_scope", scope="{}"\r\n'
"""The header line of a 403, with the scope that the key lacks (RFC 6750, section 3.1)."""


@stream_request_body
class JsonHandler(RequestHandler):
    """A handler that responds with JSON.

    ``body`` is the body of the request. It is complete when `post` is called. The handler uses
    Tornado's streaming interface, because Tornado otherwise parses a body declared as a form.
    """

    allowed: ClassVar[tuple[str, ...]] = ("GET", "HEAD")
    """The allowed methods of this route."""
    body = b""

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("Content-Type", "application/json")
        for name, value in FIELDS.items():
            self.set_header(name, value)

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk

    def head(self) -> Awaitable[None] | None:
        return self.get()

    def authenticate(self, keys: KeyRing) -> ApiKey:
        """Return the client's key, from its bearer token (RFC 6750, section 2.1).

        No other source of a key than the ``Authorization`` header is accepted. Raises `InvalidKey`
        unless there is exactly one such header, with a valid key.
        """
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        return keys.authenticate(scheme.lower(), token.lstrip(" "))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Set the ``Allow`` field of a 405. Subclasses extend this method to send the error."""
        if status_code == ApiError.METHOD.status:
            self.set_header("Allow", ", ".join(self.allowed))


class ApiHandler(JsonHandler):
    """A handler of the API. It can require a key, and it counts and logs its response."""

    route: ClassVar[str] = "none"
    """The name of this route in logs. The path itself may contain a nickname or card number."""

    key_id: str | None = None
    """The id of the client's key. It is also set if the key is expired or not valid yet."""

    query: Query | None = None
    _result: Result | None = None

    def initialize(self, api: ApiContext) -> None:
        self.api = api
        self.access_log = api.access_log
        self._method = self.request.method if self.request.method in _METHODS else "other"
        self._started_at = monotonic()

    @cached_property
    def request_id(self) -> str:
        """The client's ``X-Request-ID`` if valid, otherwise a new id."""
        return valid_request_id(self.request.headers.get("X-Request-ID", "")) or new_request_id()

    @cached_property
    def trace(self) -> Trace | None:
        """The trace context from the client's headers, or ``None``."""
        headers = self.request.headers
        return parse_trace(headers.get("traceparent", ""), headers.get("tracestate", ""))

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("X-Request-ID", self.request_id)
        if echoed := valid_request_id(self.request.headers.get(ECHOED, "")):
            self.set_header(ECHOED, echoed)

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

    def compute_etag(self) -> None:
        """Send no ``Etag``: clients must not cache responses."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        super().write_error(status_code, **kwargs)
        # If the task of this request was cancelled, Tornado passes no exception.
        error = kwargs["exc_info"][1] if "exc_info" in kwargs else CancelledError()
        self.respond(result_of_error(error))

    def respond(self, result: Result) -> None:
        """Send a response, and keep the result for the access log."""
        self._result = result
        self.set_status(result.status)
        self.set_fields(result.fields)
        self.finish(result.body)

    def set_fields(self, lines: str) -> None:
        """Set header fields from lines, each with its line break."""
        for line in lines.splitlines():
            name, _, value = line.partition(": ")
            self.set_header(name, value)

    def log_exception(self, typ: object, value: BaseException | None, tb: object) -> None:
        """Log an unexpected exception without its message. Tornado would also log the request."""
        if value is not None:
            log_unexpected(value, self.request_id)

    def on_finish(self) -> None:
        """Count and log the response."""
        request = LoggedRequest(
            self.request_id,
            self.trace,
            self._method,
            self.route,
            self.request.remote_ip or "",
            self.key_id,
            self.api.subject_of(self.query),
        )
        result = self._result or Result(self.get_status(), b"")
        seconds = monotonic() - self._started_at
        record_response(self.api.counters, self.access_log, request, result, seconds)


class NoSuchRouteHandler(ApiHandler):
    """Responds to requests for an unknown path. The error differs from "user not found"."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        super().write_error(404, exc_info=(None, ApiException(ApiError.NO_SUCH_ROUTE), None))


class HealthHandler(ApiHandler):
    """The health check. It succeeds until the service stops, even if all backends are down."""

    route = "health"

    def get(self) -> None:
        if self.api.stopping:
            raise ApiException(ApiError.OVERLOADED, reason="stopping")
        if not self.api.logs_health_checks:
            self.access_log = None  # a failed check is always logged
        self.finish(b'{"status":"ok"}')


class KeyHandler(ApiHandler):
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

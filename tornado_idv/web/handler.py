"""Bases of all handlers: Tornado's, with JSON responses and one error record."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable
from functools import cached_property
from http import HTTPStatus
from time import monotonic
from types import TracebackType
from typing import Any, ClassVar

from tornado.web import RequestHandler, stream_request_body

from tornado_idv.model import Query
from tornado_idv.trace_context import Trace, parse_trace
from tornado_idv.web.access_log import LoggedRequest, RequestLog, record_response
from tornado_idv.web.errors import ApiError, ApiException
from tornado_idv.web.lookups import ApiContext, log_unexpected, result_of_error
from tornado_idv.web.response import ECHOED, FIELDS, Result, new_request_id, valid_request_id

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods logged by name; others are text of the client's choice."""


@stream_request_body
class JsonHandler(RequestHandler):
    """Responds with JSON.

    ``body`` is that of the request, complete when `post` is called. Tornado streams it: it would
    otherwise parse a body declared as a form.
    """

    allowed: ClassVar[tuple[str, ...]] = ("GET", "HEAD")
    """The methods of this route."""
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

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Set the header fields of a 405. A subclass sends the error record."""
        if status_code == ApiError.METHOD.status:
            self.set_header("Allow", ", ".join(self.allowed))


class ApiHandler(JsonHandler):
    """Counts and logs its response."""

    route: ClassVar[str] = "none"
    """The name of this route in logs: the path itself may contain a nickname or card number."""

    key_id: str | None = None
    """The id of the client's key, once it is known; it may be expired or not valid yet."""

    query: Query | None = None
    _result: Result | None = None

    def initialize(self, api: ApiContext) -> None:
        self.api = api
        self._method = self.request.method if self.request.method in _METHODS else "other"
        self._started_at = monotonic()

    @cached_property
    def request_id(self) -> str:
        """The client's ``X-Request-ID``, or a new one."""
        return valid_request_id(self.request.headers.get("X-Request-ID", "")) or new_request_id()

    @cached_property
    def trace(self) -> Trace | None:
        """The trace of the client or ``None``."""
        headers = self.request.headers
        return parse_trace(headers.get("traceparent", ""), headers.get("tracestate", ""))

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("X-Request-ID", self.request_id)
        if echoed := valid_request_id(self.request.headers.get(ECHOED, "")):
            self.set_header(ECHOED, echoed)

    def compute_etag(self) -> None:
        """Send no ``Etag``: responses are not to be stored."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        super().write_error(status_code, **kwargs)
        # Tornado passes no exception if the task of this request was cancelled.
        error = kwargs["exc_info"][1] if "exc_info" in kwargs else CancelledError()
        self.respond(result_of_error(error))

    def respond(self, result: Result) -> None:
        """Send a response, and keep its result for the log."""
        self._result = result
        self.set_status(result.status)
        self.set_fields(result.fields)
        self.finish(result.body)

    def set_fields(self, lines: str) -> None:
        """Set header fields from lines, each with its line break."""
        for line in lines.splitlines():
            name, _, value = line.partition(": ")
            self.set_header(name, value)

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log an unexpected exception without its message; Tornado's way logs the request."""
        if value is not None:
            log_unexpected(value, self.request_id)

    @property
    def access_log(self) -> RequestLog | None:
        """The access log, or ``None`` if the response is not logged."""
        return self.api.access_log

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
    """A path without a route, whatever the method; never "no such user"."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        super().write_error(404, exc_info=(None, ApiException(ApiError.NO_SUCH_ROUTE), None))


class HealthHandler(ApiHandler):
    """Reports readiness for new requests until the service stops, whatever its backends do."""

    route = "health"

    @property
    def access_log(self) -> RequestLog | None:
        is_logged = self.api.logs_health_checks or self.get_status() != HTTPStatus.OK
        return super().access_log if is_logged else None

    def get(self) -> None:
        if self.api.stopping:
            raise ApiException(ApiError.OVERLOADED, reason="stopping")
        self.finish(b'{"status":"ok"}')

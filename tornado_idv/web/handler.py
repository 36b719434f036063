"""Base of all handlers of the API: one request in, one JSON response out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import CancelledError, Future
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, ClassVar

from tornado.httputil import HTTPMessageDelegate

from tornado_idv.errors import InvalidKey
from tornado_idv.http.exchange import Exchange
from tornado_idv.model import Query
from tornado_idv.web.access_log import CacheResult, Failure, record_response
from tornado_idv.web.errors import ApiError, ApiException, error_for
from tornado_idv.web.lookups import Services, failure_of, log_unexpected
from tornado_idv.web.response import build_response, request_id_or_new

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that are logged by name; any other is text of the client's choice."""


class JsonHandler(HTTPMessageDelegate, ABC):
    """Responds to one request with JSON, always; an error is the same record on every path.

    It is Tornado's delegate of the request, and responds when that is complete. It is not a
    `tornado.web.RequestHandler`: its templates, forms, cookies and streams cost three times the
    lookup. Routes that need those can be handlers of Tornado's own, in another application.

    ``method``, ``fields`` and ``body`` are those of the request; ``fields`` are the header fields,
    by their names in lower case.
    """

    route: ClassVar[str] = "none"
    """The name of this route in logs; a path itself may contain what was asked for."""

    allowed: ClassVar[tuple[str, ...]] = ()
    """The methods of this route; none for any."""

    key_id: str | None = None
    """The id of the client's key, once it is known; it may be expired or not valid yet."""

    query: Query | None = None
    cache: CacheResult | None = None
    backend: str | None = None
    """For the log: what was asked for, how the cache answered, and the backend that did."""

    body = b""
    _responded = False

    def __init__(self, services: Services, exchange: Exchange) -> None:
        self.services = services
        self.exchange = exchange
        self.method = exchange.head.start_line.method
        self.fields = exchange.head.fields
        self.request_id = request_id_or_new(self.fields.get("x-request-id"))

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk

    def finish(self) -> None:
        """Respond: at once, or when the future given to `wait_for` is done."""
        try:
            if not self.allowed or self.method in self.allowed:
                self.handle()
            else:
                fields = f"Allow: {', '.join(self.allowed)}\r\n"
                self.send_error(ApiError.METHOD, fields=fields)
        except Exception as error:  # noqa: BLE001 - becomes the 500 that it is
            self._send_failure(error)

    @abstractmethod
    def handle(self) -> None:
        """Call `send` or `wait_for`; whatever is raised becomes an error record."""

    def wait_for(self, future: Future[Any], then: Callable[[Future[Any]], None]) -> None:
        """Have ``then`` respond when the future is done; cheaper than a task that awaits it."""
        future.add_done_callback(partial(self._resume, then))

    def send(
        self, status: int, body: bytes, failure: Failure | None = None, fields: str = ""
    ) -> None:
        """Send the response; every one but 200 has a ``failure``, which is logged."""
        self._send(status, body, fields)
        self._log_access(status, failure)

    def send_error(self, error: ApiError, fields: str = "") -> None:
        """Send an error record with further header lines."""
        self.send(error.status, error.body, Failure(error.code), error.fields + fields)

    def _send(self, status: int, body: bytes, fields: str) -> None:
        sent = b"" if self.method == "HEAD" else body
        fields += self.exchange.connection_field
        response = build_response(status, self.request_id, sent, fields, length=len(body))
        self._responded = True
        self.exchange.respond(response)

    def _resume(self, then: Callable[[Future[Any]], None], future: Future[Any]) -> None:
        try:
            then(future)
        except (Exception, CancelledError) as error:  # noqa: BLE001 - as in `finish`
            self._send_failure(error)

    def _send_failure(self, error: BaseException) -> None:
        log_unexpected(error, self.request_id)
        if not self._responded:
            response = error_for(error)
            fields = error.fields if isinstance(error, ApiException) else ""
            self._send(response.status, response.body, response.fields + fields)
            # After the response: why a key was rejected must not show in its time.
            if isinstance(error, InvalidKey):
                self.key_id = error.key_id
            self._log_access(response.status, failure_of(error))

    def _log_access(self, status: int, failure: Failure | None = None) -> None:
        record_response(
            self.services.counters,
            self.services.access_log,
            self.method if self.method in _METHODS else "other",
            self.route,
            status,
            monotonic() - self.exchange.started_at,
            self.exchange.client_address,
            self.key_id,
            self.request_id,
            failure,
            self.services.subject_of(self.query),
            self.cache,
            self.backend,
        )


class NoSuchRouteHandler(JsonHandler):
    """A path without a route, whatever the method; never "no such user"."""

    def handle(self) -> None:
        self.send_error(ApiError.NO_SUCH_ROUTE)


class LivenessHandler(JsonHandler):
    """Says that the process responds, and nothing of its backends."""

    route = "health"
    allowed = ("GET", "HEAD")

    def handle(self) -> None:
        self.send(200, b'{"status":"ok"}')

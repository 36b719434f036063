"""Base of all handlers of the API: one request in, one JSON response out."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from asyncio import CancelledError, Future
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, ClassVar

from tornado.httputil import HTTPMessageDelegate

from tornado_idv.errors import IdvError, InvalidKey, LookupFailed, format_traceback
from tornado_idv.http.exchange import Exchange
from tornado_idv.identifiers import Identifiers
from tornado_idv.keys.ring import KeyRing
from tornado_idv.limits.failed_auth import FailedAuthLimiter
from tornado_idv.limits.key_limits import KeyLimiter
from tornado_idv.lookup.directory import Directory
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Query
from tornado_idv.web.access_log import AccessLog, CacheResult, Failure
from tornado_idv.web.errors import ApiError, ApiException, error_for
from tornado_idv.web.response import build_response, request_id_from

_log = logging.getLogger(__name__)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that are logged by name; any other is text of the client's choice."""


@dataclass(frozen=True, slots=True)
class Services:
    """Services that handlers use."""

    directory: Directory
    identifiers: Identifiers
    keys: KeyRing
    access_log: AccessLog | None = None
    key_limiter: KeyLimiter = field(default_factory=KeyLimiter)
    failed_auth: FailedAuthLimiter | None = None
    counters: Counters = field(default_factory=Counters)


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
        self.request_id = request_id_from(self.fields)

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

    def send(self, status: int, body: bytes) -> None:
        """Send the response."""
        self._send(status, body, "")
        self._log_access(status)

    def send_error(self, error: ApiError, failure: Failure | None = None, fields: str = "") -> None:
        """Send an error record with further header lines; ``failure`` is logged with it."""
        self._send(error.status, error.body, error.fields + fields)
        self._log_access(error.status, failure or Failure(error.code))

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
        if not isinstance(error, (IdvError, ApiException)):
            # The id is no part of the text, by which repeated errors are folded.
            extra = {"request_id": self.request_id}
            _log.error("unhandled exception:\n%s", format_traceback(error), extra=extra)
        if not self._responded:
            response = error_for(error)
            fields = error.fields if isinstance(error, ApiException) else ""
            self._send(response.status, response.body, response.fields + fields)
            # After the response: why a key was rejected must not show in its time.
            if isinstance(error, InvalidKey):
                self.key_id = error.key_id
            self._log_access(response.status, _failure(response, error))

    def _log_access(self, status: int, failure: Failure | None = None) -> None:
        seconds = monotonic() - self.exchange.started_at
        self._count(failure, seconds)
        log = self.services.access_log
        if log is not None:
            log.log(
                method=self.method if self.method in _METHODS else "other",
                route=self.route,
                status=status,
                seconds=seconds,
                client_address=self.exchange.client_address,
                key_id=self.key_id,
                request_id=self.request_id,
                failure=failure,
                subject=log.subject_of(self.query),
                cache=self.cache,
                backend=self.backend,
            )

    def _count(self, failure: Failure | None, seconds: float) -> None:
        counters = self.services.counters
        if self.cache is not None:
            counters.cache_lookups[self.cache] += 1
        if failure is None:
            counters.responses_of(self.route, "ok").add(seconds)
            return
        counters.responses_of(self.route, failure.code).add(seconds)
        if failure.reason is not None:
            if failure.code == ApiError.TOKEN.code:
                counters.auth_failures[failure.reason] += 1
            elif failure.code == ApiError.RATE_LIMITED.code:
                counters.rate_limited[failure.reason] += 1


def _failure(response: ApiError, error: BaseException) -> Failure:
    reasons = LookupFailed, InvalidKey, ApiException
    reason = error.reason if isinstance(error, reasons) else None
    backend = error.backend if isinstance(error, LookupFailed) else None
    return Failure(response.code, backend, reason)


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

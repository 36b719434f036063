"""What all handlers share: JSON both ways, and the error record for whatever goes wrong."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, ClassVar, Protocol, cast

from tornado.httputil import HTTPHeaders
from tornado.web import HTTPError, RequestHandler, stream_request_body

from tornado_idv.errors import IdvError, trace
from tornado_idv.web.packets import Meaning
from tornado_idv.web.refusals import Refusal, Refused, refusal_for

_log = logging.getLogger(__name__)


class Wire(Protocol):
    """What the server knows of a request, and writes into every answer by itself.

    That is ``Content-Type``, ``Date``, ``Cache-Control``, ``X-Content-Type-Options`` and
    ``X-Request-ID``: handlers set only what is theirs.
    """

    request_id: str
    """What the answer carries in ``X-Request-ID``: the caller's id if it may, else a new one."""

    began: float
    """When the request was whole, in seconds of `time.monotonic`."""

    meaning: Meaning | None
    """To be set by a handler that understood the request, for the packet cache."""


@stream_request_body
class JsonHandler(RequestHandler):
    """Answers with JSON, always; an error is one record on every path.

    The body is collected here: left to Tornado, it would be read as a form where
    its ``Content-Type`` says so, and refused before any handler is asked.
    """

    route: ClassVar[str] = "none"
    """What logs call this route; a path itself may hold what was asked for."""

    allowed: ClassVar[Sequence[str]] = ()
    """The methods this route has, for ``Allow``."""

    key_id: str | None = None
    """The id of the caller's key, once it is known to be good."""

    body: bytes = b""

    @property
    def wire(self) -> Wire:
        """What carries this request and its answer."""
        return cast(Wire, self.request.connection)

    def prepare(self) -> None:
        if self.request.method not in self.allowed:
            raise Refused(Refusal.METHOD)

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk

    def clear(self) -> None:
        """As Tornado's own, without the headers that our server writes by itself.

        The one place that sets what is private to Tornado: its `clear` formats a date and
        normalizes three headers for each answer, and again for each refusal, all to be dropped.
        """
        self._headers = HTTPHeaders()
        self._write_buffer: list[bytes] = []
        self._status_code = 200
        self._reason = "OK"

    def compute_etag(self) -> None:
        """No answer is to be kept by anyone, so none is tagged."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs["exc_info"][1] if "exc_info" in kwargs else None
        self.refuse(refusal_for(error, status_code))

    def refuse(self, refusal: Refusal) -> None:
        """Ends the request with the error record."""
        self.set_status(refusal.status)
        for name, value in refusal.headers.items():
            self.set_header(name, value)
        if refusal is Refusal.METHOD:
            self.set_header("Allow", ", ".join(self.allowed))
        self.finish(refusal.body)

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Logs what was not foreseen; a refusal is no event."""
        if value is not None and not isinstance(value, (IdvError, Refused, HTTPError)):
            _log.error("request %s failed unforeseen:\n%s", self.wire.request_id, trace(value))


class NoSuchRouteHandler(JsonHandler):
    """A path that leads nowhere, whatever the method; never "no such user"."""

    def send_error(self, status_code: int = 404, **kwargs: Any) -> None:
        super().send_error(404, exc_info=(Refused, Refused(Refusal.NO_SUCH_ROUTE), None))

    def prepare(self) -> None:
        raise Refused(Refusal.NO_SUCH_ROUTE)

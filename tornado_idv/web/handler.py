"""What all handlers share: JSON both ways, and the error record for whatever goes wrong."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, ClassVar

from tornado.web import HTTPError, RequestHandler, stream_request_body

from tornado_idv.errors import IdvError, trace
from tornado_idv.web.refusals import Refusal, Refused, refusal_for

_log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


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

    request_id: str = ""
    """What this answer carries in ``X-Request-ID``: the caller's id if it may, else a new one."""

    started: float = 0.0
    """When the request was read, in seconds of `time.monotonic`."""

    def set_default_headers(self) -> None:
        if not self.request_id:  # Tornado calls this again for an error's headers
            asked = self.request.headers.get("X-Request-ID", "")
            self.request_id = asked if _REQUEST_ID.fullmatch(asked) else secrets.token_hex(8)
            self.started = time.monotonic()
        self.clear_header("Server")
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("X-Request-ID", self.request_id)

    def prepare(self) -> None:
        self.settings["in_flight"].add(self)
        if self.request.method not in self.allowed:
            raise Refused(Refusal.METHOD)

    def on_finish(self) -> None:
        self.settings["in_flight"].remove(self)

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.settings["in_flight"].remove(self)  # a caller who left waits for no answer

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk

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
            _log.error("request %s failed unforeseen:\n%s", self.request_id, trace(value))


class NoSuchRouteHandler(JsonHandler):
    """A path that leads nowhere, whatever the method; never "no such user"."""

    def send_error(self, status_code: int = 404, **kwargs: Any) -> None:
        super().send_error(404, exc_info=(Refused, Refused(Refusal.NO_SUCH_ROUTE), None))

    def prepare(self) -> None:
        self.settings["in_flight"].add(self)
        raise Refused(Refusal.NO_SUCH_ROUTE)

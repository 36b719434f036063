"""What all handlers share: JSON both ways, and the error record for whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import responses
from types import TracebackType
from typing import Any, ClassVar, cast

from tornado.httputil import HTTPConnection, HTTPHeaders, HTTPServerRequest, ResponseStartLine
from tornado.web import Application, OutputTransform, RequestHandler

from tornado_idv.errors import IdvError, format_traceback
from tornado_idv.web.packets import Meaning
from tornado_idv.web.refusals import Refusal, Refused, refusal_for

_log = logging.getLogger(__name__)
_NO_HEADERS = HTTPHeaders()
"""To be copied: that takes a third of the time of making them from nothing."""


@dataclass(slots=True)
class Understood:
    """What handlers understood of a head, for when the same bytes come again.

    ``digest`` is the key's; ``takes_json`` says that the body is JSON and that JSON is taken.
    """

    digest: bytes | None = None
    takes_json: bool = False


class Wire(HTTPConnection):
    """What the server knows of a request, and writes into every answer by itself.

    That is ``Content-Type``, ``Date``, ``Cache-Control``, ``X-Content-Type-Options`` and
    ``X-Request-ID``: handlers set only what is theirs.
    """

    request_id: str
    """What the answer carries in ``X-Request-ID``: the caller's id if it may, else a new one."""

    began: float
    """When the request was whole, in seconds of `time.monotonic`."""

    remote: str
    """The caller's address, behind trusted proxies if there are any."""

    understood: Understood
    """Shared by the requests of a connection that have the same head."""

    has_key: bool
    """To be set once the caller's key is known to be good: who has none takes turns."""

    meaning: Meaning | None
    """To be set by a handler that understood the request, for the packet cache."""

    set_close_callback: Callable[[Callable[[], None] | None], None]
    """Names what is to be called if the caller leaves before the answer is complete."""


class JsonHandler(RequestHandler):
    """Answers with JSON, always; an error is one record on every path.

    Tornado's own way from a request to its answer serves templates, forms, cookies and
    streams, which costs three times what the lookup does. So `__init__`, `run`, `clear` and
    `finish` are ours: the one place where what is private to Tornado is touched.
    """

    route: ClassVar[str] = "none"
    """What logs call this route; a path itself may hold what was asked for."""

    allowed: ClassVar[Sequence[str]] = ()
    """The methods this route has, for ``Allow``."""

    key_id: str | None = None
    """The id of the caller's key, once it is known to be good."""

    _transforms: list[OutputTransform] = []  # noqa: RUF012 - as Tornado names what we have none of

    def __init__(
        self, application: Application, request: HTTPServerRequest, **needs: object
    ) -> None:
        self.application = application
        self.request = request
        self.wire = cast(Wire, request.connection)
        """What carries this request and its answer."""
        self._headers_written = self._finished = self._waits = False
        self.clear()
        self.wire.set_close_callback(self.on_connection_close)
        self.initialize(**needs)

    def prepare(self) -> None:
        if self.request.method not in self.allowed:
            raise Refused(Refusal.METHOD)

    def run(self) -> None:
        """Answers: at once, or when a future is done, or in a task if there is one to await."""
        try:
            self.prepare()
            awaited = getattr(self, str(self.request.method).lower())()
            if awaited is not None:
                self._task = asyncio.get_running_loop().create_task(self._await(awaited))
            elif not self._finished and not self._waits:
                self.finish()
        except Exception as error:  # noqa: BLE001 - answered as the 500 it is
            self._fail(error)

    def wait_for(self, future: Future[Any], then: Callable[[Future[Any]], None]) -> None:
        """Has ``then`` end the request once the future is done: a task less than to await it."""
        self._waits = True
        future.add_done_callback(partial(self._then, then))

    def _then(self, then: Callable[[Future[Any]], None], future: Future[Any]) -> None:
        try:
            then(future)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as in `run`
            self._fail(error)

    async def _await(self, awaited: Awaitable[None]) -> None:
        try:
            await awaited
            if not self._finished:
                self.finish()
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the service ends, and with it the connection
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, (IdvError, Refused)):  # of those none is an event
            self.log_exception(type(error), error, error.__traceback__)
        if not self._finished:
            if self._headers or self._write_buffer:
                self.clear()
            self.refuse(refusal_for(error))

    def clear(self) -> None:
        """Begins the answer anew, without the headers that our server writes by itself."""
        self._headers = HTTPHeaders(_NO_HEADERS)
        self._write_buffer: list[bytes] = []
        self._status_code = 200
        self._reason = "OK"

    def compute_etag(self) -> None:
        """No answer is to be kept by anyone, so none is tagged."""

    def finish(self, chunk: Any = None) -> Future[None]:
        """Ends the answer; one that is given as a whole, in bytes, is sent as it is."""
        if not isinstance(chunk, bytes) or self._write_buffer or self._headers_written:
            return super().finish(chunk)
        self._finished = self._headers_written = True
        connection = self.wire
        connection.set_close_callback(None)
        self._headers["Content-Length"] = str(len(chunk))
        sent = connection.write_headers(
            ResponseStartLine("", self._status_code, self._reason),
            self._headers,
            b"" if self.request.method == "HEAD" else chunk,
        )
        connection.finish()
        self.application.log_request(self)
        self.on_finish()
        return sent

    def refuse(self, refusal: Refusal) -> None:
        """Ends the request with the error record."""
        self._status_code, self._reason = refusal.status, responses[refusal.status]
        for name, value in refusal.headers.items():
            self._headers[name] = value
        if refusal is Refusal.METHOD:
            self.set_header("Allow", ", ".join(self.allowed))
        self.finish(refusal.body)

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Logs what was not foreseen."""
        if value is not None:
            _log.error(
                "request %s failed unforeseen:\n%s", self.wire.request_id, format_traceback(value)
            )


class NoSuchRouteHandler(JsonHandler):
    """A path that leads nowhere, whatever the method; never "no such user"."""

    def prepare(self) -> None:
        raise Refused(Refusal.NO_SUCH_ROUTE)

"""One request as handlers read it."""

from __future__ import annotations

from collections.abc import Callable

from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from tornado_idv.http.exchange import Exchange


class Request(HTTPMessageDelegate):
    """The method, path, header fields and body of a request; no query, form or cookie.

    Tornado's delegate of one request: once the request is complete, ``dispatch`` is called with
    it. The default repr shows nothing of the input.
    """

    method: str
    path: str
    headers: HTTPHeaders
    body = b""

    def __init__(self, exchange: Exchange, dispatch: Callable[[Request], None]) -> None:
        self.exchange = exchange
        self._dispatch = dispatch

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        if not isinstance(start_line, RequestStartLine):
            raise TypeError("a request starts with a RequestStartLine")
        self.method, path, _ = start_line
        self.path = path.partition("?")[0]
        self.headers = headers

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk

    def finish(self) -> None:
        self._dispatch(self)

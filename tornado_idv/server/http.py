"""Tornado's HTTP server with limits, strict framing and the error record.

Tornado alone waits an hour for a header, for ever for a body, takes 100 MB, and
answers what it refuses with HTML or nothing.
"""

from __future__ import annotations

import resource
import secrets
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from http.client import responses
from typing import Any, cast

from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream

from tornado_idv.server.framing import framing_refusal, origin_form
from tornado_idv.web.refusals import Refusal

_MAX_HEADERS = 16 * 1024
_MAX_BUFFER = 64 * 1024
_SPARE_DESCRIPTORS = 128


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one caller may take of us: bytes, seconds and connections."""

    max_body: int = 16 * 1024
    idle_timeout: float = 10.0
    body_timeout: float = 5.0
    max_connections: int = 4000

    def within_descriptors(self) -> HttpLimits:
        """The same limits, with no more connections than the process has descriptors for."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most == resource.RLIM_INFINITY:
            return self
        fitting = max(1, most - _SPARE_DESCRIPTORS)
        return replace(self, max_connections=min(self.max_connections, fitting))


class LimitedServer(HTTPServer):
    """Serves an application within `HttpLimits`."""

    def initialize(  # type: ignore[override]
        self, app: HTTPServerConnectionDelegate, limits: HttpLimits
    ) -> None:
        super().initialize(
            app,
            idle_connection_timeout=limits.idle_timeout,
            body_timeout=limits.body_timeout,
            max_body_size=limits.max_body,
            max_header_size=_MAX_HEADERS,
            max_buffer_size=_MAX_BUFFER,
        )
        self._limits = limits
        self._open = 0

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        if self._open >= self._limits.max_connections:
            stream.write(_as_bytes(Refusal.OVERLOADED))
            stream.close()
            return
        self._open += 1
        super().handle_stream(stream, address)

    def on_close(self, server_conn: object) -> None:
        self._open -= 1
        super().on_close(server_conn)

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        delegate = super().start_request(server_conn, request_conn)
        return _StrictDelegate(delegate, request_conn, self._limits.max_body)


class _StrictDelegate(HTTPMessageDelegate):
    """Refuses what `framing_refusal` refuses; the rest goes to the application."""

    def __init__(
        self, delegate: HTTPMessageDelegate, connection: HTTPConnection, max_body: int
    ) -> None:
        self._delegate = delegate
        self._connection = connection
        self._max_body = max_body
        self._refused = False

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        start_line = cast(RequestStartLine, start_line)
        start_line = start_line._replace(path=origin_form(start_line.path))
        refusal = framing_refusal(start_line, headers, self._max_body)
        if refusal is not None:
            self._refuse(refusal)
            return None
        if "Expect" in headers:
            headers["Expect"] = headers["Expect"].lower()  # Tornado compares the case
        return self._delegate.headers_received(start_line, headers)

    def _refuse(self, refusal: Refusal) -> None:
        """Answers before the body is read, which makes Tornado close the connection."""
        self._refused = True
        start_line = ResponseStartLine("HTTP/1.1", refusal.status, responses[refusal.status])
        self._connection.write_headers(start_line, _headers(refusal), refusal.body)
        self._connection.finish()

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return None if self._refused else self._delegate.data_received(chunk)

    def finish(self) -> None:
        if not self._refused:
            self._delegate.finish()

    def on_connection_close(self) -> None:
        if not self._refused:
            self._delegate.on_connection_close()


def _headers(refusal: Refusal) -> HTTPHeaders:
    return HTTPHeaders(
        {
            "Content-Type": "application/json",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Request-ID": secrets.token_hex(8),
            "Content-Length": str(len(refusal.body)),
            "Connection": "close",
            **refusal.headers,
        }
    )


def _as_bytes(refusal: Refusal) -> bytes:
    lines = [f"HTTP/1.1 {refusal.status} {responses[refusal.status]}"]
    lines += [f"{name}: {value}" for name, value in _headers(refusal).get_all()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + refusal.body

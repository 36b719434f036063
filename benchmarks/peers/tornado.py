"""Our own handlers on `tornado.httpserver.HTTPServer`: only the HTTP server differs.

It takes a ``config.yaml`` where the other peers take the contract file.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import Future
from pathlib import Path
from typing import Any

import uvloop
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from tornado_idv.config.load import load
from tornado_idv.http.exchange import Exchange, Peer
from tornado_idv.http.head import RequestHead
from tornado_idv.keys.ring import KeyRing
from tornado_idv.logs.handlers import configure_logging
from tornado_idv.registry import backend_kinds, plugin_manager
from tornado_idv.service.directories import open_directory
from tornado_idv.service.service import api_key
from tornado_idv.web.app import Api, make_api
from tornado_idv.web.lookups import Services


class Adapter(HTTPServerConnectionDelegate):
    """Passes Tornado's requests to our API."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def start_request(self, server_conn: object, request_conn: Any) -> HTTPMessageDelegate:
        return AdaptedRequest(self.api, server_conn, request_conn)

    def on_close(self, server_conn: object) -> None:
        """Nothing is kept for a connection."""


class AdaptedRequest(HTTPMessageDelegate):
    """Creates the `Exchange` of a request once its head has been read."""

    def __init__(self, api: Api, server_conn: object, connection: Any) -> None:
        self._api = api
        self._server_conn = server_conn
        self._connection = connection
        self._delegate: HTTPMessageDelegate

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        assert isinstance(start_line, RequestStartLine)
        fields = {name.lower(): value for name, value in headers.items()}
        head = RequestHead(
            start_line, headers, fields, None, keep_alive=True, expects_continue=False
        )
        context = self._connection.context
        peer = Peer(context.remote_ip, context.protocol)
        exchange = Exchange(TornadoSink(self._connection), head, peer)
        self._delegate = self._api.start_request(self._server_conn, exchange)
        self._delegate.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> None:
        self._delegate.data_received(chunk)

    def finish(self) -> None:
        self._delegate.finish()


class TornadoSink:
    """Sends a serialized response by Tornado's `HTTPConnection`, with the same header fields."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection

    def send(self, data: bytes) -> Future[None]:
        head, _, body = data.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        version, status, reason = status_line.split(" ", 2)
        headers = HTTPHeaders(line.split(": ", 1) for line in lines)
        start_line = ResponseStartLine(version, int(status), reason)
        return self._connection.write_headers(start_line, headers, body)

    def on_response_complete(self, *, keep_alive: bool) -> None:  # noqa: ARG002 Tornado decides
        self._connection.finish()


async def serve(port: int, config: Path) -> None:
    manager = plugin_manager()
    settings = load(config, backend_kinds(manager), {})
    access_log = configure_logging(settings.logging.level, settings.logging.format).access
    keys = KeyRing(api_key(entry) for entry in settings.auth.keys)
    async with open_directory(settings, manager) as directory:
        services = Services(directory, settings.make_identifiers(), keys, access_log)
        HTTPServer(Adapter(make_api(services))).listen(port, "127.0.0.1")
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2])))

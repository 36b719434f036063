"""Our own handlers on `tornado.httpserver.HTTPServer`: the same, but for the transport.

It takes a ``config.yaml`` where the other peers take the file of the contract.
"""

from __future__ import annotations

import asyncio
import sys
import time
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
from tornado.web import Application

from tornado_idv.config.load import load
from tornado_idv.keys.ring import KeyRing
from tornado_idv.registry import backend_kinds, plugin_manager
from tornado_idv.server.logs import configure_logging, open_access_log
from tornado_idv.server.service import api_key, open_directory
from tornado_idv.web.answers import http_date, new_request_id
from tornado_idv.web.app import make_app
from tornado_idv.web.handler import Understood, Wire


class Wired(HTTPServerConnectionDelegate):
    """Gives our handlers Tornado's own connections, as they ask for them."""

    def __init__(self, app: Application) -> None:
        self.app = app

    def start_request(self, server_conn: object, request_conn: Any) -> HTTPMessageDelegate:
        return self.app.start_request(server_conn, Carrier(request_conn))

    def on_close(self, server_conn: object) -> None:
        """Nothing is kept for a connection."""


class Carrier(Wire):
    """Writes into each answer what our own transport writes into it."""

    def __init__(self, connection: Any) -> None:
        self.request_id = new_request_id()
        self.began = time.monotonic()
        self.meaning = None
        self.understood = Understood()
        self.has_key = False
        self.remote = connection.context.remote_ip
        self.context = connection.context
        self.set_close_callback = connection.set_close_callback
        self.write = connection.write
        self.finish = connection.finish
        self._connection: HTTPConnection = connection

    def write_headers(
        self,
        start_line: RequestStartLine | ResponseStartLine,
        headers: HTTPHeaders,
        chunk: bytes | None = None,
    ) -> Future[None]:
        headers["Content-Type"] = "application/json"
        headers["Date"] = http_date()
        headers["Cache-Control"] = "no-store"
        headers["X-Content-Type-Options"] = "nosniff"
        headers["X-Request-ID"] = self.request_id
        return self._connection.write_headers(start_line, headers, chunk)


async def serve(port: int, config: Path) -> None:
    manager = plugin_manager()
    settings = load(config, backend_kinds(manager), {})
    configure_logging(settings.logging.level, settings.logging.format)
    access_log = open_access_log(settings.logging.level, settings.logging.format)
    keys = KeyRing(api_key(entry) for entry in settings.auth.keys)
    async with open_directory(settings, manager) as directory:
        app = make_app(directory, settings.make_identifiers(), keys, access_log=access_log)
        HTTPServer(Wired(app)).listen(port, "127.0.0.1")
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2])))

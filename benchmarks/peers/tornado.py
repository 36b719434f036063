"""Our own handlers on `tornado.httpserver.HTTPServer`: the same, but for the transport.

It takes a ``config.yaml`` where the other peers take the file of the contract.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import uvloop
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
)
from tornado.web import Application, OutputTransform

from tornado_idv.config.load import load
from tornado_idv.keys.ring import KeyRing
from tornado_idv.registry import backend_kinds, plugin_manager
from tornado_idv.server.logs import configure_logging, open_access_log
from tornado_idv.server.service import api_key, open_directory
from tornado_idv.web.answers import new_request_id
from tornado_idv.web.app import make_app


class Wired(HTTPServerConnectionDelegate):
    """Gives Tornado's own connections what our handlers ask of theirs."""

    def __init__(self, app: Application) -> None:
        self.app = app

    def start_request(self, server_conn: object, request_conn: Any) -> HTTPMessageDelegate:
        request_conn.request_id = new_request_id()
        request_conn.began = time.monotonic()
        request_conn.meaning = None
        return self.app.start_request(server_conn, request_conn)

    def on_close(self, server_conn: object) -> None:
        """Nothing is kept for a connection."""


class OurHeaders(OutputTransform):
    """Writes into each answer what our own transport writes into it."""

    def __init__(self, request: Any) -> None:
        self.connection: HTTPConnection = request.connection

    def transform_first_chunk(
        self,
        status_code: int,
        headers: HTTPHeaders,
        chunk: bytes,
        finishing: bool,  # noqa: ARG002, FBT001 Tornado's signature
    ) -> tuple[int, HTTPHeaders, bytes]:
        headers["Content-Type"] = "application/json"
        headers["Cache-Control"] = "no-store"
        headers["X-Content-Type-Options"] = "nosniff"
        headers["X-Request-ID"] = self.connection.request_id  # type: ignore[attr-defined]
        return status_code, headers, chunk


async def serve(port: int, config: Path) -> None:
    manager = plugin_manager()
    settings = load(config, backend_kinds(manager), {})
    configure_logging(settings.logging.level, settings.logging.format)
    access_log = open_access_log(settings.logging.level, settings.logging.format)
    keys = KeyRing(api_key(entry) for entry in settings.auth.keys)
    async with open_directory(settings, manager) as directory:
        app = make_app(directory, settings.valid_forms(), keys, access_log=access_log)
        app.transforms = [OurHeaders]
        HTTPServer(Wired(app)).listen(port, "127.0.0.1")
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2])))

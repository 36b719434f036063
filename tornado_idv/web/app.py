"""The routes, wired to what they need."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerRequest,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.web import Application, RequestHandler

from tornado_idv.identifiers import Identifiers
from tornado_idv.keys.ring import KeyRing
from tornado_idv.lookup.directory import Directory
from tornado_idv.web.access import AccessLog
from tornado_idv.web.handler import JsonHandler, NoSuchRouteHandler
from tornado_idv.web.identify import IdentifyCardHandler, IdentifyUrlHandler

Route = tuple[type[JsonHandler], dict[str, Any]]
"""A handler, and what its `initialize` is given."""


class ExactRoutes(Application):
    """Finds handlers by whole path in a table, where Tornado would try pattern after pattern."""

    def __init__(self, routes: Mapping[str, Route], **settings: Any) -> None:
        super().__init__(**settings)
        self._routes = routes

    def start_request(
        self,
        server_conn: object,  # noqa: ARG002 - Tornado's signature
        request_conn: HTTPConnection,
    ) -> HTTPMessageDelegate:
        return _Message(self, request_conn)

    def route(self, path: str) -> Route:
        """What answers requests for this path."""
        return self._routes.get(path, (NoSuchRouteHandler, {}))


class Request(HTTPServerRequest):
    """What handlers know of a request: less than Tornado tells of one.

    Nothing here reads a query, a form or a cookie. (Tornado would take some bodies for forms,
    and refuse them before a handler is asked.)
    """

    def __init__(
        self, start_line: RequestStartLine, headers: HTTPHeaders, connection: HTTPConnection
    ) -> None:
        self.method, self.uri, self.version = start_line
        self.path, _, self.query = start_line.path.partition("?")
        self.headers = headers
        self.body = b""
        self.connection = connection


class _Message(HTTPMessageDelegate):
    """One request as it comes in; when it is whole, a handler runs."""

    def __init__(self, app: ExactRoutes, connection: HTTPConnection) -> None:
        self._app = app
        self._connection = connection
        self._request: Request

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        self._request = Request(
            start_line,  # type: ignore[arg-type] # of a request it is one
            headers,
            self._connection,
        )

    def data_received(self, chunk: bytes) -> None:
        self._request.body += chunk

    def finish(self) -> None:
        handler, needs = self._app.route(self._request.path)
        handler(self._app, self._request, **needs).run()


def make_app(
    directory: Directory,
    identifiers: Identifiers,
    keys: KeyRing,
    base_path: str = "",
    access_log: AccessLog | None = None,
) -> Application:
    """The application of the contract below ``base_path``; everything else is no route."""
    root = f"{base_path}/api/v1/identify"
    needs = {"directory": directory, "identifiers": identifiers}
    return ExactRoutes(
        {
            f"{root}/url": (IdentifyUrlHandler, needs),
            f"{root}/card": (IdentifyCardHandler, needs),
        },
        log_function=log_access,
        access_log=access_log,
        keys=keys,
    )


def log_access(handler: RequestHandler) -> None:
    """Notes the answer of a handler in the access log, where there is one."""
    log: AccessLog | None = handler.settings["access_log"]
    if log is not None and isinstance(handler, JsonHandler):
        known = handler.request.method in handler.SUPPORTED_METHODS
        log.answered(
            method=handler.request.method if known else "other",
            route=handler.route,
            status=handler.get_status(),
            seconds=time.monotonic() - handler.wire.began,
            remote=handler.wire.remote,
            key_id=handler.key_id,
            request_id=handler.wire.request_id,
        )

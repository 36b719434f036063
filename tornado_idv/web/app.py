"""The routes, wired to what they need."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tornado.httputil import HTTPServerRequest
from tornado.web import Application, RequestHandler

from tornado_idv.directory import Directory
from tornado_idv.identifiers import Identifiers
from tornado_idv.keys.ring import KeyRing
from tornado_idv.web.access import AccessLog
from tornado_idv.web.handler import JsonHandler, NoSuchRouteHandler
from tornado_idv.web.identify import IdentifyCardHandler, IdentifyUrlHandler


class ExactRoutes(Application):
    """Finds handlers by whole path in a table, where Tornado would try pattern after pattern."""

    def __init__(
        self, routes: Mapping[str, tuple[type[JsonHandler], dict[str, Any]]], **settings: Any
    ) -> None:
        super().__init__(default_handler_class=NoSuchRouteHandler, **settings)
        self._routes = routes

    def find_handler(self, request: HTTPServerRequest, **_: Any) -> Any:
        handler, needs = self._routes.get(request.path, (NoSuchRouteHandler, {}))
        return self.get_handler_delegate(request, handler, needs)


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
            key_id=handler.key_id,
            request_id=handler.wire.request_id,
        )

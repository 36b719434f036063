"""The routes, wired to what they need."""

from __future__ import annotations

import re
import time

from tornado.web import Application, RequestHandler

from tornado_idv.directory import Directory
from tornado_idv.identifiers import Identifiers
from tornado_idv.keys.ring import KeyRing
from tornado_idv.web.access import AccessLog
from tornado_idv.web.handler import JsonHandler, NoSuchRouteHandler
from tornado_idv.web.identify import IdentifyCardHandler, IdentifyUrlHandler


def make_app(
    directory: Directory,
    identifiers: Identifiers,
    keys: KeyRing,
    base_path: str = "",
    access_log: AccessLog | None = None,
) -> Application:
    """The application of the contract below ``base_path``; everything else is no route."""
    root = re.escape(f"{base_path}/api/v1/identify")
    needs = {"directory": directory, "identifiers": identifiers}
    return Application(
        [
            (f"{root}/url", IdentifyUrlHandler, needs),
            (f"{root}/card", IdentifyCardHandler, needs),
        ],
        default_handler_class=NoSuchRouteHandler,
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

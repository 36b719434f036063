"""The routes, wired to what they need."""

from __future__ import annotations

import re

from tornado.web import Application

from tornado_idv.directory import Directory
from tornado_idv.identifiers import Identifiers
from tornado_idv.keys.ring import KeyRing
from tornado_idv.web.access import log_access
from tornado_idv.web.handler import NoSuchRouteHandler
from tornado_idv.web.identify import IdentifyCardHandler, IdentifyUrlHandler
from tornado_idv.web.in_flight import InFlight


def make_app(
    directory: Directory,
    identifiers: Identifiers,
    keys: KeyRing,
    in_flight: InFlight,
    base_path: str = "",
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
        keys=keys,
        in_flight=in_flight,
    )

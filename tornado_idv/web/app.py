"""The Tornado application, and the responses to requests rejected before routing."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NamedTuple

from tornado.web import Application

from tornado_idv.config.settings import Settings
from tornado_idv.features import FEATURES
from tornado_idv.http.serving import Reject
from tornado_idv.metrics.counters import Counters
from tornado_idv.web.access_log import LoggedRequest, RequestLog, record_response
from tornado_idv.web.errors import BY_STATUS
from tornado_idv.web.fast_path.known_heads import KnownHeads
from tornado_idv.web.handler import ApiHandler, HealthHandler, KeyHandler, NoSuchRouteHandler
from tornado_idv.web.identify import IdentifyCardHandler, IdentifyUrlHandler
from tornado_idv.web.lookups import ApiContext
from tornado_idv.web.response import Result, build_response, new_request_id

API = "/api/v1"


class Route(NamedTuple):
    """A route of the API. Its ``path`` is relative to ``server.base_path``.

    With ``is_prefix`` the route also matches all paths below. ``arguments`` are passed to the
    handler's `initialize` in addition to ``api``.
    """

    path: str
    handler: type[ApiHandler]
    arguments: Mapping[str, Any] = MappingProxyType({})
    is_prefix: bool = False


OWN_ROUTES = tuple(
    Route(f"{API}/{each.route}", each)
    for each in (IdentifyUrlHandler, IdentifyCardHandler, KeyHandler)
)
"""The routes of the core."""


def all_routes(settings: Settings) -> list[Route]:
    """Return the routes of the core and of the features for these settings.

    A feature receives the routes of the core and of the features before it. Its own routes replace
    routes with the same path.
    """
    routes = {each.path: each for each in OWN_ROUTES}
    for place in filter(None, (each.routes for each in FEATURES)):
        routes |= {each.path: each for each in resolve_name(place)(settings, [*routes.values()])}
    return [*routes.values()]


def make_api(
    api: ApiContext,
    base_path: str = "",
    health_path: str | None = None,
    routes: Iterable[Route] = OWN_ROUTES,
    *,
    known_heads: KnownHeads | None = None,
    **settings: Any,
) -> Application:
    """Return the application. Its handlers add heads of accepted requests to ``known_heads``."""
    arguments = {"api": api}
    rules: list[tuple[str, type[ApiHandler], dict[str, Any]]] = [
        (
            re.escape(base_path + each.path) + ("(?:/.*)?" if each.is_prefix else ""),
            each.handler,
            {**arguments, **each.arguments},
        )
        for each in routes
    ]
    if health_path is not None:
        rules.append((re.escape(health_path), HealthHandler, arguments))
    return Application(
        rules,
        default_handler_class=NoSuchRouteHandler,
        default_handler_args=arguments,
        log_function=lambda _: None,
        known_heads=known_heads,
        **settings,
    )


def make_reject(access_log: RequestLog | None, counters: Counters | None = None) -> Reject:
    """Return a function that renders, logs and counts the rejection of a request."""
    counted = counters or Counters()

    def reject(status: HTTPStatus, client_address: str) -> bytes:
        error = BY_STATUS[status]
        request = LoggedRequest(new_request_id(), None, "-", "-", client_address)
        fields = f"{error.fields}Connection: close\r\n"
        result = Result(error.status, error.body, fields, error.code)
        record_response(counted, access_log, request, result, 0.0)
        return build_response(error.status, request.request_id, error.body, fields)

    return reject

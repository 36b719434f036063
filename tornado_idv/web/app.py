"""The routes: which handler responds to a request."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from tornado.httputil import (
    HTTPConnection,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
)

from tornado_idv.http.context import Reject
from tornado_idv.http.exchange import Exchange
from tornado_idv.metrics.counters import Counters
from tornado_idv.web.access_log import AccessLog, Failure, record_response
from tornado_idv.web.errors import error_for_rejected
from tornado_idv.web.handler import JsonHandler, LivenessHandler, NoSuchRouteHandler
from tornado_idv.web.identify import IdentifyCardHandler, IdentifyUrlHandler
from tornado_idv.web.lookups import Services
from tornado_idv.web.response import build_error, new_request_id


class Api(HTTPServerConnectionDelegate):
    """Dispatches requests to handlers by their whole path.

    `tornado.web.Application` would match one pattern after the other.
    """

    def __init__(self, services: Services, routes: Mapping[str, type[JsonHandler]]) -> None:
        self._services = services
        self._routes = routes

    def start_request(
        self,
        server_conn: object,  # noqa: ARG002 - Tornado's signature
        request_conn: HTTPConnection,
    ) -> HTTPMessageDelegate:
        if not isinstance(request_conn, Exchange):
            raise TypeError("these handlers are served by tornado_idv.http alone")
        path, _, _ = request_conn.head.start_line.path.partition("?")
        handler = self._routes.get(path, NoSuchRouteHandler)
        return handler(self._services, request_conn)


def make_api(services: Services, base_path: str = "", health_path: str | None = None) -> Api:
    """Return the API below ``base_path``; every other path but ``health_path`` has no route."""
    root = f"{base_path}/api/v1/identify"
    routes: dict[str, type[JsonHandler]] = {
        f"{root}/url": IdentifyUrlHandler,
        f"{root}/card": IdentifyCardHandler,
    }
    if health_path is not None:
        routes[health_path] = LivenessHandler
    return Api(services, routes)


def make_reject(access_log: AccessLog | None, counters: Counters | None = None) -> Reject:
    """Return what renders, logs and counts requests that are rejected before a handler runs."""
    counted = counters or Counters()

    def reject(status: HTTPStatus, client_address: str) -> bytes:
        error, request_id = error_for_rejected(status), new_request_id()
        log, failure = access_log, Failure(error.code)
        record_response(
            counted, log, "-", "-", error.status, 0.0, client_address, None, request_id, failure
        )
        return build_error(error, request_id, "Connection: close\r\n")

    return reject

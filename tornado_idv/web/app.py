"""The routes, and what turns a request into a call of a handler."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from tornado_idv.http.context import Reject
from tornado_idv.http.exchange import Exchange
from tornado_idv.web.access_log import AccessLog, Failure
from tornado_idv.web.errors import error_for_rejected
from tornado_idv.web.handler import JsonHandler, NoSuchRouteHandler, Request, Services
from tornado_idv.web.identify import IdentifyCardHandler, IdentifyUrlHandler
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
        return _Message(self, request_conn)

    def dispatch(self, path: str, exchange: Exchange, request: Request) -> None:
        """Run the handler of a path."""
        handler = self._routes.get(path, NoSuchRouteHandler)
        handler(self._services, exchange, request).run()


class _Message(HTTPMessageDelegate):
    """Collects one request; when it is complete, its handler runs."""

    def __init__(self, api: Api, exchange: Exchange) -> None:
        self._api = api
        self._exchange = exchange
        self._path = ""
        self._request: Request

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        if not isinstance(start_line, RequestStartLine):
            raise TypeError("a request starts with a RequestStartLine")
        self._path = start_line.path.partition("?")[0]
        self._request = Request(start_line.method, headers)

    def data_received(self, chunk: bytes) -> None:
        self._request.body += chunk

    def finish(self) -> None:
        self._api.dispatch(self._path, self._exchange, self._request)


def make_api(services: Services, base_path: str = "") -> Api:
    """Return the API below ``base_path``; every other path has no route."""
    root = f"{base_path}/api/v1/identify"
    return Api(services, {f"{root}/url": IdentifyUrlHandler, f"{root}/card": IdentifyCardHandler})


def make_reject(access_log: AccessLog | None) -> Reject:
    """Return what renders and logs requests that are rejected before a handler runs."""

    def reject(status: HTTPStatus, client_address: str) -> bytes:
        error, request_id = error_for_rejected(status), new_request_id()
        if access_log is not None:
            access_log.log(
                method="-",
                route="-",
                status=error.status,
                seconds=0.0,
                client_address=client_address,
                key_id=None,
                request_id=request_id,
                failure=Failure(error.code),
            )
        return build_error(error, request_id, "Connection: close\r\n")

    return reject

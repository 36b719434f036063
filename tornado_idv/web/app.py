"""The Tornado application, and responses to requests that are rejected before routing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from tornado.web import Application

from tornado_idv.features.batch.handler import BatchHandler
from tornado_idv.features.docs.page import File, FileHandler, RootHandler
from tornado_idv.features.verify.handler import VerifyHandler
from tornado_idv.http.serving import Reject
from tornado_idv.metrics.counters import Counters
from tornado_idv.web.access_log import Request, RequestLog, record_response
from tornado_idv.web.authenticated import AuthenticatedHandler, KeyHandler
from tornado_idv.web.errors import BY_STATUS
from tornado_idv.web.handler import ApiHandler, HealthHandler, NoSuchRouteHandler
from tornado_idv.web.identify import IdentifyCardHandler, IdentifyUrlHandler
from tornado_idv.web.known_heads import KnownHeads
from tornado_idv.web.lookups import Services
from tornado_idv.web.response import Result, build_response, new_request_id

_NO_DOCS: Mapping[str, File] = MappingProxyType({})


def make_api(
    services: Services,
    base_path: str = "",
    health_path: str | None = None,
    docs: Mapping[str, File] = _NO_DOCS,
    identify: Sequence[type[AuthenticatedHandler]] = (),
    *,
    verify: type[VerifyHandler] | None = None,
    known_heads: KnownHeads | None = None,
    **settings: Any,
) -> Application:
    """Return the API and ``docs`` below ``base_path``, and ``health_path``.

    ``identify`` are handlers in place of those that look users up; ``known_heads`` learn from them.
    Without ``verify`` there is no such route.
    """
    root = f"{base_path}/api/v1"
    identify = identify or (IdentifyUrlHandler, IdentifyCardHandler, BatchHandler)
    routes: dict[str, type[ApiHandler]] = {f"{base_path}/": RootHandler} if docs else {}
    routes |= {f"{root}/{each.route}": each for each in identify}
    routes[f"{root}/key"] = KeyHandler
    if health_path is not None:
        routes[health_path] = HealthHandler
    files = {f"{base_path}/{path}": file for path, file in docs.items()}
    routes |= dict.fromkeys(files, FileHandler)
    arguments = {"services": services}
    rules = [(re.escape(path), handler, arguments) for path, handler in routes.items()]
    if verify is not None:
        # The path may go on: Envoy appends that of its client.
        rules.append((re.escape(f"{root}/{verify.route}") + "(?:/.*)?", verify, arguments))
    return Application(
        rules,
        default_handler_class=NoSuchRouteHandler,
        default_handler_args=arguments,
        log_function=lambda _: None,
        files=files,
        known_heads=known_heads,
        **settings,
    )


def make_reject(access_log: RequestLog | None, counters: Counters | None = None) -> Reject:
    """Return what renders, logs and counts requests that are rejected before a handler runs."""
    counted = counters or Counters()

    def reject(status: HTTPStatus, client_address: str) -> bytes:
        error = BY_STATUS[status]
        request = Request(new_request_id(), None, "-", "-", client_address)
        fields = f"{error.fields}Connection: close\r\n"
        result = Result(error.status, error.body, fields, error.code)
        record_response(counted, access_log, request, result, 0.0)
        return build_response(error.status, request.request_id, error.body, fields)

    return reject

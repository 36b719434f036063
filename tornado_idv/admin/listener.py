"""The socket of the admin listener, and its routes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from ipaddress import ip_address
from typing import Any

from tornado.web import Application

from tornado_idv.admin.handler import AdminHandler, NoSuchRouteHandler
from tornado_idv.admin.handlers import FILE_ROUTES, ROUTES
from tornado_idv.admin.operations import Operations
from tornado_idv.features.status_page.history import sampled
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.http.server import HttpServer
from tornado_idv.http.serving import Serving
from tornado_idv.web.app import make_reject

_LIMITS = HttpLimits(
    max_connections=64,
    replace_idle=True,
    warning="limit of %d connections of the admin listener reached: closing idle ones",
    idle_timeout=5.0,
    keep_alive_timeout=75.0,  # longer than the usual interval of scrapes and health checks
)


@asynccontextmanager
async def admin_listening(
    sockets: Sequence[socket.socket],
    host: str,
    operations: Operations,
    more_routes: Mapping[str, type[AdminHandler]] | None = None,
    **application_settings: Any,
) -> AsyncIterator[None]:
    """Serve the admin listener on bound sockets; ``host`` is the configured one."""
    async with sampled(operations) as history:
        arguments = {
            "operations": operations,
            "history": history,
            "host": host,
            "needs_key": not all(ip_address(each.getsockname()[0]).is_loopback for each in sockets),
        }
        routes = {**ROUTES, **FILE_ROUTES, **(more_routes or {})}
        application = Application(
            [(path, handler, arguments) for path, handler in routes.items()],
            default_handler_class=NoSuchRouteHandler,
            default_handler_args=arguments,
            log_function=lambda _: None,
            **application_settings,
        )
        server = HttpServer(Serving(application, make_reject(None), _LIMITS))
        with closing(server):
            await server.listen(sockets)
            yield

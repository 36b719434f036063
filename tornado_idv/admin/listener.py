"""The socket of the admin listener, and its routes."""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from ipaddress import ip_address
from pkgutil import resolve_name
from typing import Any

from tornado.web import Application

from tornado_idv.admin.handlers import ROUTES, NoSuchRouteHandler
from tornado_idv.admin.operations import Operations
from tornado_idv.features import FEATURES
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
    sockets: Sequence[socket.socket], host: str, operations: Operations, **settings: Any
) -> AsyncIterator[None]:
    """Serve the admin listener on bound sockets. ``host`` is ``admin.host``.

    ``settings`` are the settings of the Tornado application. Features may read and add settings.
    """
    arguments = {
        "operations": operations,
        "host": host,
        "needs_key": not all(ip_address(each.getsockname()[0]).is_loopback for each in sockets),
    }
    routes = {**ROUTES}
    async with AsyncExitStack() as stack:
        for place in (each.admin_routes for each in FEATURES if each.admin_routes):
            routes |= await stack.enter_async_context(resolve_name(place)(operations, settings))
        application = Application(
            [(path, handler, arguments) for path, handler in routes.items()],
            default_handler_class=NoSuchRouteHandler,
            default_handler_args=arguments,
            log_function=lambda _: None,
            **settings,
        )
        serving = Serving(application, make_reject(None), _LIMITS)
        server = stack.enter_context(closing(HttpServer(serving)))
        await server.listen(sockets)
        yield

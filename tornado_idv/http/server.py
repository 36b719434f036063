"""Sockets on which an application is served."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence

from tornado.httputil import HTTPServerConnectionDelegate

from tornado_idv.http.connection import Connection
from tornado_idv.http.connections import ConnectionTable
from tornado_idv.http.context import Reject, ServerContext
from tornado_idv.http.exchange import Peer
from tornado_idv.http.fair_queue import FairQueue
from tornado_idv.http.fast_path import FastPath
from tornado_idv.http.limits import HttpLimits
from tornado_idv.http.trusted_proxies import TrustedProxies

_BACKLOG = 1024
_KERNEL_BUFFER = 64 * 1024
"""Bytes that the kernel may buffer for a connection in each direction. Its default is megabytes,
which a client that never reads would fill with ten thousand responses."""


class HttpServer:
    """Serves an application within limits until it is drained or closed.

    ``reject`` renders and logs what is rejected before the application sees it; ``fast_path``
    makes the `FastPath` of a new connection.
    """

    def __init__(
        self,
        app: HTTPServerConnectionDelegate,
        reject: Reject,
        limits: HttpLimits,
        *,
        fast_path: Callable[[Peer], FastPath] | None = None,
        proxies: TrustedProxies | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        writable = loop.create_future()
        writable.set_result(None)
        self._connections = ConnectionTable(loop, limits.max_connections)
        self._context = ServerContext(
            app=app,
            reject=reject,
            fast_path=fast_path,
            proxies=proxies,
            limits=limits,
            loop=loop,
            connections=self._connections,
            queue=FairQueue(loop),
            writable=writable,
        )
        self._listeners: list[asyncio.Server] = []

    async def listen(
        self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None
    ) -> None:
        """Accept connections on bound sockets, in the clear or with TLS."""
        for each in sockets:
            for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                each.setsockopt(socket.SOL_SOCKET, buffer, _KERNEL_BUFFER)
            listener = await self._context.loop.create_server(
                lambda: Connection(self._context),
                sock=each,
                backlog=_BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=self._context.limits.idle_timeout if tls else None,
            )
            self._listeners.append(listener)

    async def drain(self) -> None:
        """Stop accepting; return when every request was answered and every client is gone."""
        self._stop_accepting()
        await self._connections.drain()

    def close(self) -> None:
        """Stop accepting and abort every connection."""
        self._stop_accepting()
        self._connections.close()

    def _stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

"""The HTTP server. It serves an application on listening sockets."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Sequence

from tornado_idv.http.connection import Connection
from tornado_idv.http.connection_table import ConnectionTable
from tornado_idv.http.fair_queue import AUTHENTICATED_BUDGET, UNAUTHENTICATED_RATE, FairQueue
from tornado_idv.http.serving import ServerContext, Serving
from tornado_idv.http.tls_acceptor import TlsAcceptor

_BACKLOG = 4096
"""Maximum number of connections of a listening socket that wait to be accepted."""
_ACCEPTS_PER_ITERATION = 8
"""Listeners per socket, each on a duplicate of the descriptor. uvloop accepts one connection per
listener and event-loop iteration. With a single listener under load, new clients would wait in the
backlog for seconds. A duplicate costs microseconds."""
_SEND_BUFFER = 64 * 1024
"""Size of the kernel's send buffer per connection. The default is megabytes, so a client that never
reads would fill the buffer with ten thousand responses."""
_RECEIVE_BUFFER = 16 * 1024
"""Minimum size of the kernel's receive buffer per connection; a larger ``max_body`` raises it. The
size bounds memory: the server checks its limits only after a read, and a read returns up to 1.5
times this size (Linux 6)."""


class HttpServer:
    """Serves an application within limits until `drain` or `close` is called.

    ``timer`` returns seconds for the fair queues.
    """

    def __init__(self, serving: Serving, *, timer: Callable[[], float] = time.perf_counter) -> None:
        loop = asyncio.get_running_loop()
        written = loop.create_future()
        written.set_result(None)
        self.connections = ConnectionTable(loop, serving.limits)
        self._context = ServerContext(
            serving=serving,
            loop=loop,
            connections=self.connections,
            authenticated=FairQueue(loop, timer, budget=AUTHENTICATED_BUDGET),
            unauthenticated=FairQueue(loop, timer, rate=UNAUTHENTICATED_RATE),
            written=written,
        )
        self._listeners: list[asyncio.Server | TlsAcceptor] = []
        self._acceptors: list[TlsAcceptor] = []

    async def listen(
        self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None
    ) -> None:
        """Accept connections on bound sockets. With ``tls``, the connections use TLS."""
        limits = self._context.serving.limits
        for each in sockets:
            # Another process may accept a connection first. Duplicates of `dup` share this flag.
            each.setblocking(False)  # noqa: FBT003 - the method takes no keyword
            receive = min(max(_RECEIVE_BUFFER, limits.max_body), _SEND_BUFFER)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            if tls is None:
                # `create_unix_server` would remove the file of the socket when it is closed.
                create = self._context.loop.create_server
                for sock in (each, *(each.dup() for _ in range(_ACCEPTS_PER_ITERATION - 1))):
                    self._listeners.append(await create(self.connect, sock=sock, backlog=_BACKLOG))
            else:
                each.listen(_BACKLOG)
                self._acceptors.append(TlsAcceptor(each, tls, self._context))
                self._listeners.append(self._acceptors[-1])

    def connect(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self._context)

    def replace(self, serving: Serving, tls: ssl.SSLContext | None = None) -> None:
        """Change the application and the limits, from the next request on.

        Open connections stay open. Requests in progress complete in the old application. With
        ``tls``, new TLS connections use this context.
        """
        self._context.serving = serving
        self.connections.update(serving.limits)
        if tls is not None:
            for acceptor in self._acceptors:
                acceptor.tls = tls

    async def drain(self) -> None:
        """Stop accepting, complete all requests, and wait until all connections are closed."""
        self._stop_accepting()
        await asyncio.sleep(0)  # accepted sockets become connections in the next iteration
        handshakes = [each.finish() for each in self._acceptors]
        await asyncio.gather(self.connections.drain(), *handshakes)
        await self.connections.drain()  # connections that these handshakes created

    def close(self) -> None:
        """Stop accepting and abort every connection."""
        self._stop_accepting()
        for each in self._acceptors:
            each.abort()
        self.connections.close()

    def _stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

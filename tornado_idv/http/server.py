"""An HTTP server: an application on sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Sequence

from tornado_idv.http.connection import Connection
from tornado_idv.http.connection_table import ConnectionTable
from tornado_idv.http.fair_queue import AUTHENTICATED_BUDGET, UNAUTHENTICATED_RATE, FairQueue
from tornado_idv.http.serving import ServerContext, Serving
from tornado_idv.http.tls_acceptor import TlsAcceptor

_BACKLOG = 4096
"""Connections that may wait to be accepted, as many as for systemd's sockets, which also keep them
during a restart."""
_ACCEPTS_PER_ITERATION = 8
"""Listeners per socket, on duplicates of it. uvloop accepts one connection per listener and
event-loop iteration: under load, new clients would wait in the backlog for seconds. A duplicate
costs microseconds."""
_SEND_BUFFER = 64 * 1024
"""Bytes of responses in the kernel's buffer of a connection. Its default is megabytes: a client
that never reads would fill it with ten thousand responses."""
_RECEIVE_BUFFER = 16 * 1024
"""Bytes of requests in the kernel's buffer of a connection; more if bodies may be larger. One read
returns up to 1.5 times as many (Linux 6): a client can send that much past a limit."""
_MAX_HANDSHAKES = 1000
"""The maximum number of TLS handshakes in progress."""
_HANDSHAKE_TIMEOUT = 3.0
_HANDSHAKES_ABOVE_LIMIT = 16
"""Handshakes above ``max_connections``: a 503 over TLS needs a complete one."""


class HttpServer:
    """Serves an application within limits until it is drained or closed.

    ``timer`` measures the cost of queued requests, in seconds.
    """

    def __init__(self, serving: Serving, *, timer: Callable[[], float] = time.perf_counter) -> None:
        loop = asyncio.get_running_loop()
        written = loop.create_future()
        written.set_result(None)
        self._connections = ConnectionTable(loop, serving.limits)
        self._context = ServerContext(
            serving=serving,
            loop=loop,
            connections=self._connections,
            authenticated=FairQueue(loop, timer, budget=AUTHENTICATED_BUDGET),
            unauthenticated=FairQueue(loop, timer, rate=UNAUTHENTICATED_RATE),
            written=written,
        )
        self._listeners: list[asyncio.Server | TlsAcceptor] = []
        self._acceptors: list[TlsAcceptor] = []

    async def listen(
        self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None
    ) -> None:
        """Accept connections on bound sockets, in the clear or with TLS."""
        limits, loop = self._context.serving.limits, self._context.loop
        for each in sockets:
            # First, and for `dup`, too: another process may accept from the same socket.
            each.setblocking(False)  # noqa: FBT003 - the method takes no keyword
            receive = min(max(_RECEIVE_BUFFER, limits.max_body), _SEND_BUFFER)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            if tls is None:
                # Not `create_unix_server`: it removes the file of the socket at its close.
                create = loop.create_server
                for sock in (each, *(each.dup() for _ in range(_ACCEPTS_PER_ITERATION - 1))):
                    self._listeners.append(await create(self.connect, sock=sock, backlog=_BACKLOG))
            else:
                each.listen(_BACKLOG)
                room, timeout = self._has_room_for_handshake, self._handshake_timeout
                self._acceptors.append(TlsAcceptor(each, tls, self.connect, room, timeout))
                self._listeners.append(self._acceptors[-1])

    def connect(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self._context)

    def replace(self, serving: Serving, tls: ssl.SSLContext | None = None) -> None:
        """Serve another application within other limits, from the next request on.

        Open connections stay open, and requests in flight complete in the old application.
        ``tls`` is the context for new connections of a server with TLS.
        """
        self._context.serving = serving
        self._connections.update(serving.limits)
        if tls is not None:
            for acceptor in self._acceptors:
                acceptor.update(tls, self._handshake_timeout)

    @property
    def _handshake_timeout(self) -> float:
        return min(_HANDSHAKE_TIMEOUT, self._context.serving.limits.idle_timeout)

    def _has_room_for_handshake(self, pending: int) -> bool:
        """Return whether another handshake, besides ``pending``, fits the limits."""
        limit = self._context.serving.limits.max_connections + _HANDSHAKES_ABOVE_LIMIT
        return pending < _MAX_HANDSHAKES and len(self._connections) + pending < limit

    def connection_states(self) -> Counter[str]:
        """Return the number of open connections by state."""
        return self._connections.states()

    def connections_limit(self) -> int:
        """Return the number of connections above which new ones are rejected."""
        return self._context.serving.limits.max_connections

    async def drain(self) -> None:
        """Stop accepting; return when every request was answered and every client is gone."""
        self._stop_accepting()
        await asyncio.sleep(0)  # accepted sockets become connections in the next iteration
        handshakes = [each.finish() for each in self._acceptors]
        await asyncio.gather(self._connections.drain(), *handshakes)
        await self._connections.drain()  # those of the handshakes

    def close(self) -> None:
        """Stop accepting and abort every connection."""
        self._stop_accepting()
        for each in self._acceptors:
            each.abort()
        self._connections.close()

    def _stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

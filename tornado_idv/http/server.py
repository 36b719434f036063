"""The HTTP server. It serves an application on listening sockets."""

import asyncio
import logging
import socket
import ssl
import time
from asyncio import Task, TimerHandle
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from tornado_idv.http.connection import Connection
from tornado_idv.http.serving import ServerContext, Serving

_log = logging.getLogger(__name__)

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
_ACCEPT_BATCH = 8
"""Maximum connections accepted per iteration, because a burst must not delay other traffic."""
_RETRY_AFTER = 1.0
"""Seconds to wait after a failed `accept`, for example if no file descriptor is free."""
_MAX_HANDSHAKES = 1000
"""Maximum number of TLS handshakes in progress."""
_HANDSHAKE_TIMEOUT = 3.0
_HANDSHAKES_ABOVE_LIMIT = 16
"""Handshakes allowed above ``max_connections``. A TLS client gets a 503 only after a handshake."""
_READ_BUFFER = 16 * 1024
"""Maximum bytes that TLS buffers while a connection does not read. asyncio's default is 256 KiB."""


class HttpServer:
    """Serves an application within limits until `drain` or `close` is called.

    ``timer`` returns seconds for the fair queues.
    """

    def __init__(self, serving: Serving, *, timer: Callable[[], float] = time.perf_counter) -> None:
        self._context = ServerContext(serving, timer)
        self.connections = self._context.connections
        self.connect = partial(Connection, self._context)
        """Returns the protocol of a new connection."""
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


class TlsAcceptor:
    """Accepts TLS connections on a non-blocking listening socket. Limits handshakes in progress.

    asyncio's own server creates a protocol only after the handshake. A client that never completes
    its handshake would hold a file descriptor, and no limit would count the client.

    ``tls`` has the certificate for new connections. If the limits do not permit another handshake,
    the oldest handshake is aborted, because a regular client needs only milliseconds.
    """

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext, context: ServerContext) -> None:
        self.tls = tls
        self._loop = context.loop
        self._sock = sock
        self._context = context
        self._pending: dict[Task[None], None] = {}  # oldest first
        self._retry: TimerHandle | None = None
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Close the socket. Handshakes in progress may complete."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    async def finish(self) -> None:
        """Wait for the end of pending handshakes, at most for their timeout."""
        if self._pending:
            await asyncio.wait(self._pending)

    def abort(self) -> None:
        """Abort the pending handshakes."""
        for task in self._pending:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPT_BATCH):
            try:
                accepted, _ = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                text = "cannot accept a connection (%s); next attempt in %d s"
                _log.error(text, error.strerror, _RETRY_AFTER)
                self._loop.remove_reader(self._sock)
                resume = partial(self._loop.add_reader, self._sock, self._accept)
                self._retry = self._loop.call_later(_RETRY_AFTER, resume)
                return
            self._begin(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        while self._pending and not self._has_room():
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.cancel()
        if not self._has_room():
            accepted.close()
            return
        accepted.setblocking(False)  # noqa: FBT003 - the method takes no keyword
        task = self._loop.create_task(self._handshake(accepted))
        self._pending[task] = None
        task.add_done_callback(partial(self._end, accepted))

    def _has_room(self) -> bool:
        pending = len(self._pending)
        limit = self._context.serving.limits.max_connections + _HANDSHAKES_ABOVE_LIMIT
        return pending < _MAX_HANDSHAKES and len(self._context.connections) + pending < limit

    async def _handshake(self, accepted: socket.socket) -> None:
        timeout = min(_HANDSHAKE_TIMEOUT, self._context.serving.limits.idle_timeout)
        connect = partial(Connection, self._context)
        with suppress(OSError):  # includes all errors of TLS and timeouts
            transport, _ = await self._loop.connect_accepted_socket(
                connect, accepted, ssl=self.tls, ssl_handshake_timeout=timeout
            )
            # asyncio and uvloop have this method; `asyncio.Transport` does not declare it.
            cast("Any", transport).set_read_buffer_limits(high=_READ_BUFFER)

    def _end(self, accepted: socket.socket, task: Task[None]) -> None:
        self._pending.pop(task, None)
        if task.cancelled():
            accepted.close()  # a task cancelled before its first step has no transport to do this

"""The acceptor of TLS connections. It limits the handshakes in progress.

asyncio's own server creates a protocol only after the handshake. A client that never completes its
handshake would hold a file descriptor, and no limit would count the client.
"""

import asyncio
import logging
import socket
import ssl
from asyncio import Task, TimerHandle
from contextlib import suppress
from functools import partial
from typing import Any, cast

from tornado_idv.http.connection import Connection
from tornado_idv.http.serving import ServerContext

_log = logging.getLogger(__name__)

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


class TlsAcceptor:
    """Accepts TLS connections on a non-blocking listening socket.

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
        """Return whether the limits permit another handshake."""
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

"""The acceptor of TLS connections. It limits the handshakes in progress.

asyncio's own server creates a protocol only after the handshake. A client that never completes its
handshake would hold a file descriptor, and no limit would count the client.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from asyncio import Task, TimerHandle
from collections.abc import Callable
from contextlib import suppress
from functools import partial

_log = logging.getLogger(__name__)

_ACCEPT_BATCH = 8
"""Maximum connections accepted per iteration, because a burst must not delay other traffic."""
_RETRY_AFTER = 1.0
"""Seconds to wait after a failed `accept`, for example if no file descriptor is free."""
_READ_BUFFER = 16 * 1024
"""Maximum bytes that TLS buffers while a connection does not read. asyncio's default is 256 KiB."""


class TlsAcceptor:
    """Accepts TLS connections on a non-blocking listening socket.

    ``connect`` creates the protocol of a connection after its handshake. ``has_room`` takes the
    number of pending handshakes, and returns whether another handshake is allowed. If not, the
    oldest handshake is aborted, because a regular client needs only milliseconds. A handshake is
    also aborted after ``timeout`` seconds.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        connect: Callable[[], asyncio.Protocol],
        has_room: Callable[[int], bool],
        timeout: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._context = context
        self._connect = connect
        self._has_room = has_room
        self._timeout = timeout
        self._pending: dict[Task[None], None] = {}  # oldest first
        self._retry: TimerHandle | None = None
        self._resume()

    def update(self, context: ssl.SSLContext, timeout: float) -> None:
        """Use another certificate and timeout for new connections."""
        self._context, self._timeout = context, timeout

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

    def _resume(self) -> None:
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPT_BATCH):
            try:
                accepted, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                text = "cannot accept a connection (%s); next attempt in %d s"
                _log.error(text, error.strerror, _RETRY_AFTER)
                self._loop.remove_reader(self._sock)
                self._retry = self._loop.call_later(_RETRY_AFTER, self._resume)
                return
            self._begin(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        while self._pending and not self._has_room(len(self._pending)):
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.cancel()
        if not self._has_room(len(self._pending)):
            accepted.close()
            return
        accepted.setblocking(False)  # noqa: FBT003 - the method takes no keyword
        task = self._loop.create_task(self._handshake(accepted))
        self._pending[task] = None
        task.add_done_callback(partial(self._end, accepted))

    async def _handshake(self, accepted: socket.socket) -> None:
        with suppress(OSError):  # includes all errors of TLS and timeouts
            transport, _ = await self._loop.connect_accepted_socket(
                self._connect, accepted, ssl=self._context, ssl_handshake_timeout=self._timeout
            )
            # asyncio and uvloop have this method; `asyncio.Transport` does not declare it.
            set_limits = getattr(transport, "set_read_buffer_limits", None)
            if set_limits is not None:
                set_limits(high=_READ_BUFFER)

    def _end(self, accepted: socket.socket, task: Task[None]) -> None:
        self._pending.pop(task, None)
        if task.cancelled():
            accepted.close()  # a task cancelled before its first step has no transport to do this

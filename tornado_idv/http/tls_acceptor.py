"""Accept TLS connections, with bounds on the handshakes that are under way.

asyncio's own server creates a protocol only after the handshake, so that a client which never
begins one would hold a descriptor that nothing counts.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from asyncio import AbstractEventLoop, Task, TimerHandle
from collections.abc import Callable
from contextlib import suppress
from functools import partial

_log = logging.getLogger(__name__)

_ACCEPT_BATCH = 8
"""Connections accepted per iteration, so that a burst does not delay other traffic."""
_MAX_ABORTING = 16
"""Aborted handshakes whose descriptors are not closed yet, which takes some iterations."""
_RETRY_AFTER = 1.0
"""Seconds until accepting is tried again after the system refused a descriptor."""


class TlsAcceptor:
    """Turns connections on listening sockets into TLS connections.

    ``connect`` makes the protocol of a connection whose handshake has ended. ``has_room`` is
    given the number of pending handshakes and returns whether there may be one more; if not, the
    oldest one is aborted, since a regular client needs milliseconds. A handshake that takes
    longer than ``timeout`` seconds is aborted, too.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        context: ssl.SSLContext,
        connect: Callable[[], asyncio.Protocol],
        has_room: Callable[[int], bool],
        timeout: float,
    ) -> None:
        self._loop = loop
        self._context = context
        self._connect = connect
        self._has_room = has_room
        self._timeout = timeout
        self._pending: dict[Task[None], None] = {}  # oldest first
        self._aborting: set[Task[None]] = set()
        self._sockets: dict[socket.socket, TimerHandle | None] = {}

    def listen(self, sock: socket.socket, backlog: int) -> None:
        """Accept connections on a bound socket, which `close` closes."""
        sock.setblocking(False)  # noqa: FBT003 - the method takes no keyword
        sock.listen(backlog)
        self._resume(sock)

    def update(self, context: ssl.SSLContext, timeout: float) -> None:
        """Use another certificate and timeout for new connections."""
        self._context, self._timeout = context, timeout

    def close(self) -> None:
        """Stop listening and abort the pending handshakes."""
        for sock, retry in self._sockets.items():
            if retry is not None:
                retry.cancel()
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()
        for task in self._pending:
            task.cancel()

    def _resume(self, sock: socket.socket) -> None:
        self._sockets[sock] = None
        self._loop.add_reader(sock, self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(_ACCEPT_BATCH):
            if len(self._aborting) >= _MAX_ABORTING:
                return  # the others wait in the backlog
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error(
                    "cannot accept a connection (%s); next attempt in %d s",
                    error.strerror,
                    _RETRY_AFTER,
                )
                self._loop.remove_reader(sock)
                self._sockets[sock] = self._loop.call_later(_RETRY_AFTER, self._resume, sock)
                return
            self._begin(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        while self._pending and not self._has_room(len(self._pending)):
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            self._aborting.add(oldest)
            oldest.cancel()
        if not self._has_room(len(self._pending)):
            accepted.close()
            return
        accepted.setblocking(False)  # noqa: FBT003 - the method takes no keyword
        task = self._loop.create_task(self._handshake(accepted))
        self._pending[task] = None
        task.add_done_callback(partial(self._end, accepted))

    async def _handshake(self, accepted: socket.socket) -> None:
        with suppress(OSError):  # among them all errors of TLS, and a timeout
            await self._loop.connect_accepted_socket(
                self._connect,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout,
            )

    def _end(self, accepted: socket.socket, task: Task[None]) -> None:
        self._pending.pop(task, None)
        self._aborting.discard(task)
        if task.cancelled():
            accepted.close()  # cancelled before its first step, it has no transport that does

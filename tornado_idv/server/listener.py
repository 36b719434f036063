"""The sockets that are listened on, and every connection that came of them."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from asyncio import AbstractEventLoop, Future
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from tornado.httputil import HTTPServerConnectionDelegate

from tornado_idv.server.connection import Connection
from tornado_idv.server.turns import Turns
from tornado_idv.web.access import AccessLog
from tornado_idv.web.packets import PacketCache
from tornado_idv.web.proxies import TrustedProxies

_log = logging.getLogger(__name__)

_SPARE_DESCRIPTORS = 128
_MOST_REFUSED = 64
"""How many refused callers may hold a descriptor until they leave by themselves."""
_TELL_EVERY = 60.0
_BACKLOG = 1024
_KERNEL_BUFFER = 64 * 1024
"""Bytes that the kernel is to hold of a connection each way. By itself it holds megabytes, and
a caller who never reads is answered ten thousand times until they are full."""
_SWEEP = 0.1
"""Seconds between two looks at a connection's deadline: cheaper than a timer for each."""
_SWEPT_AT_ONCE = 100
_MOST_PARTS = 50
"""A round of looks is made in parts of about so many connections, but not in more parts."""
_LATE_AT_ONCE = 2
"""How many late callers are dealt with before the others have their turn again: to close a
connection takes as long as some answers, and a crowd that came at once is late at once."""
_BREATH = 0.001
"""Seconds until the next of them: those who were closed come back together, too."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one caller may take of us: bytes, seconds and connections."""

    max_body: int = 16 * 1024
    idle_timeout: float = 10.0
    body_timeout: float = 5.0
    max_connections: int = 4000

    def within_descriptors(self) -> HttpLimits:
        """The same limits, with no more connections than the process has descriptors for."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most == resource.RLIM_INFINITY:
            return self
        return replace(
            self, max_connections=max(1, min(self.max_connections, most - _SPARE_DESCRIPTORS))
        )


class Listener:
    """Serves an application on sockets, within limits, until it is drained."""

    def __init__(
        self,
        app: HTTPServerConnectionDelegate,
        limits: HttpLimits,
        packets: PacketCache | None = None,
        proxies: TrustedProxies | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        self.app = app
        self.access_log = access_log
        self.packets = packets
        self.proxies = proxies
        self.limits = limits
        self.draining = False
        self.loop: AbstractEventLoop = asyncio.get_running_loop()
        self.turns = Turns(self.loop)
        self.done: Future[None] = self.loop.create_future()
        """A future that is done: nothing is to be waited for."""
        self.done.set_result(None)
        self._connections: dict[Connection, None] = {}  # in the order they came
        self._refused: set[Connection] = set()
        self._told_at = -inf
        self._servers: list[asyncio.Server] = []
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._unswept: list[Connection] = []
        self._part = _SWEPT_AT_ONCE
        self._pause = _SWEEP
        self._sweeping = self.loop.call_later(_SWEEP, self._sweep)

    async def listen(
        self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None
    ) -> None:
        """Accepts connections on bound sockets, in the clear or by TLS."""
        for each in sockets:
            for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                each.setsockopt(socket.SOL_SOCKET, buffer, _KERNEL_BUFFER)
            server = await self.loop.create_server(
                lambda: Connection(self),
                sock=each,
                backlog=_BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=self.limits.idle_timeout if tls else None,
            )
            self._servers.append(server)

    def admit(self, connection: Connection) -> bool:
        """Takes a new connection in; says whether there is room for it."""
        taken = len(self._connections) - len(self._refused)
        self._connections[connection] = None
        self._none_open.clear()
        if taken < self.limits.max_connections:
            return True
        self._refused.add(connection)
        self._tell_once_a_minute()
        return False

    @property
    def crowded(self) -> bool:
        """Whether there are too many refused callers to wait until they leave."""
        return len(self._refused) > _MOST_REFUSED

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        self._connections.pop(connection, None)
        self._refused.discard(connection)
        if not self._connections:
            self._none_open.set()

    async def drain(self) -> None:
        """Stops listening, and returns when every request was answered and every caller left."""
        self._stop_listening()
        self.draining = True
        self.packets = None
        for connection in tuple(self._connections):
            connection.drain()
        await self._none_open.wait()

    def close(self) -> None:
        """Stops listening and ends every connection as it is."""
        self._stop_listening()
        self._sweeping.cancel()
        for connection in tuple(self._connections):
            connection.abort()

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _tell_once_a_minute(self) -> None:
        if self.loop.time() - self._told_at >= _TELL_EVERY:
            self._told_at = self.loop.time()
            most = self.limits.max_connections
            _log.warning("all %d connections are taken: more are answered 503", most)

    def _sweep(self) -> None:
        """Looks at a part of the connections, and soon at the next."""
        if not self._unswept:
            self._begin_round()
        now, late = self.loop.time(), 0
        for _ in range(min(self._part, len(self._unswept))):
            connection = self._unswept.pop()
            if connection.deadline <= now:
                connection.expire()
                late += 1
                if late == _LATE_AT_ONCE:
                    break
        pause = self._pause if late < _LATE_AT_ONCE else _BREATH
        self._sweeping = self.loop.call_later(pause, self._sweep)

    def _begin_round(self) -> None:
        self._unswept = list(reversed(self._connections))
        self._part = max(_SWEPT_AT_ONCE, len(self._unswept) // _MOST_PARTS)
        self._pause = _SWEEP / (1 + len(self._unswept) // self._part)

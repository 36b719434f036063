"""The sockets that are listened on, and every connection that came of them."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import time
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from tornado.httputil import HTTPServerConnectionDelegate

from tornado_idv.server.connection import Connection
from tornado_idv.server.fair_queue import PIPELINED_BUDGET, UNAUTHENTICATED_SHARE, FairQueue
from tornado_idv.server.tls_acceptor import TlsAcceptor
from tornado_idv.web.access import AccessLog
from tornado_idv.web.packets import PacketCache
from tornado_idv.web.proxies import TrustedProxies

_log = logging.getLogger(__name__)

_SPARE_DESCRIPTORS = 128
_MOST_REFUSED = 64
"""How many refused callers may hold a descriptor until they leave by themselves."""
_TELL_EVERY = 60.0
_BACKLOG = 1024
_ACCEPTS_PER_ITERATION = 8
"""uvloop accepts one connection per socket and iteration, so that under load new clients wait in
the backlog for seconds; so each socket is duplicated, which costs a connection microseconds."""
_SEND_BUFFER = 64 * 1024
"""Bytes that the kernel is to hold of a connection's responses. By itself it holds megabytes, and
a client that never reads is sent ten thousand responses until they are full."""
_RECEIVE_BUFFER = 16 * 1024
"""Bytes that the kernel is to hold of a connection's requests, unless bodies may be larger. One
read returns up to 1.5 times as many (Linux 6), which is what a client can send past a limit."""
_MAX_HANDSHAKES = 1000
"""TLS handshakes under way at once."""
_HANDSHAKE_TIMEOUT = 3.0
_HANDSHAKES_ABOVE_LIMIT = 16
"""So many clients above ``max_connections`` may end a handshake, which a 503 by TLS needs."""
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
        *,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.app = app
        self.access_log = access_log
        self.packets = packets
        self.proxies = proxies
        self.limits = limits
        self.draining = False
        self.loop: AbstractEventLoop = asyncio.get_running_loop()
        self.pipelined = FairQueue(self.loop, timer, budget=PIPELINED_BUDGET)
        self.unauthenticated = FairQueue(self.loop, timer, share=UNAUTHENTICATED_SHARE)
        self.done: Future[None] = self.loop.create_future()
        """A future that is done: nothing is to be waited for."""
        self.done.set_result(None)
        self._connections: dict[Connection, None] = {}  # in the order they came
        self._refused: set[Connection] = set()
        self._told_at = -inf
        self._servers: list[asyncio.Server | TlsAcceptor] = []
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
            receive = min(max(_RECEIVE_BUFFER, self.limits.max_body), _SEND_BUFFER)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            if tls is None:
                for sock in (each, *(each.dup() for _ in range(_ACCEPTS_PER_ITERATION - 1))):
                    server = await self.loop.create_server(
                        self._connect, sock=sock, backlog=_BACKLOG
                    )
                    self._servers.append(server)
            else:
                timeout = min(_HANDSHAKE_TIMEOUT, self.limits.idle_timeout)
                acceptor = TlsAcceptor(
                    self.loop, tls, self._connect, self._has_room_for_handshake, timeout
                )
                acceptor.listen(each, _BACKLOG)
                self._servers.append(acceptor)

    def _connect(self) -> Connection:
        return Connection(self)

    def _has_room_for_handshake(self, pending: int) -> bool:
        """Whether one more than ``pending`` handshakes are within limits and descriptors."""
        most = self.limits.max_connections + _HANDSHAKES_ABOVE_LIMIT
        return pending < _MAX_HANDSHAKES and len(self._connections) + pending < most

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

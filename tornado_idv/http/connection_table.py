"""The table of open connections. It limits their number, and enforces their timeouts."""

import asyncio
import logging
import resource
from asyncio import AbstractEventLoop
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Protocol


class State(Enum):
    """State of a connection.

    ::

        IDLE -> READING -> RESPONDING -> IDLE
                   ^            ^  |
                   +--> QUEUED -+<-+
        every state -> CLOSING -> CLOSED

    Two conditions are independent of the state: the client does not read (`pause_writing`), and
    the client sends no more (`eof_received`).
    """

    IDLE = auto()
    """No byte of a request has arrived."""
    READING = auto()
    """A request is arriving, or waits until the client has read the previous response."""
    QUEUED = auto()
    """A request waits in a fair queue: it is pipelined, or the fast path does not serve it."""
    RESPONDING = auto()
    """A request is being handled."""
    CLOSING = auto()
    """The last response is being sent; input is discarded."""
    CLOSED = auto()


_RESERVED_DESCRIPTORS = 192
"""File descriptors kept for backends, files, listening sockets, rejected connections and the
connections of the admin listener."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of an HTTP server in bytes, seconds and connections.

    ``keep_alive_timeout`` is the maximum time between two requests, by default ``idle_timeout``.
    Above ``max_connections``, a new connection is rejected. With ``replace_idle``, the oldest
    connection without a complete request is closed instead; if every connection has a complete
    request, the new one is rejected. ``warning`` is the log message when the maximum is reached.
    """

    max_body: int = 16 * 1024
    idle_timeout: float = 10.0
    keep_alive_timeout: float | None = None
    body_timeout: float = 5.0
    max_connections: int = 4000
    replace_idle: bool = False
    warning: str = "server.max_connections reached (%d): new connections get 503"

    def within_descriptors(self) -> "HttpLimits":
        """Return these limits, with ``max_connections`` lowered to fit ``RLIMIT_NOFILE``."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return self
        available = max(1, limit - _RESERVED_DESCRIPTORS)
        return replace(self, max_connections=min(self.max_connections, available))


_log = logging.getLogger(__name__)

_MAX_REJECTED = 64
"""Maximum number of rejected connections that stay open until their clients close them."""
_SWEEP_INTERVAL = 0.1
"""Seconds between checks of all deadlines. They cost less than a timer per connection."""
_EXPIRE_BATCH = 2
"""Maximum connections closed by one call of `_sweep`. The number is small, because many clients may
time out together, and to close a connection costs as much as several responses."""
_EXPIRE_PAUSE = 0.001
"""Seconds between two batches of expired connections, so that clients reconnect gradually."""


class TimedConnection(Protocol):
    """The methods of a `Connection` in the table. ``deadline`` is a time of the loop's clock."""

    deadline: float
    state: State

    def on_timeout(self) -> None: ...

    def update_serving(self) -> None: ...

    def drain(self) -> None: ...

    def abort(self) -> None: ...


class ConnectionTable:
    """Holds the open connections, at most ``max_connections``, and enforces their deadlines."""

    def __init__(self, loop: AbstractEventLoop, limits: HttpLimits) -> None:
        self._loop = loop
        self.limits = limits
        self._connections: dict[TimedConnection, None] = {}  # in the order of arrival
        self._rejected: set[TimedConnection] = set()  # also connections that were replaced
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False
        """True after a call of `drain`. Connections accepted before the call may still register."""
        self._expired: list[TimedConnection] = []
        self._timer = loop.call_later(_SWEEP_INTERVAL, self._sweep)

    def register(self, connection: TimedConnection) -> bool:
        """Add a connection. Return whether it may be served."""
        served = len(self._connections) - len(self._rejected)
        idle = None
        if is_full := served >= self.limits.max_connections:
            _log.warning(self.limits.warning, self.limits.max_connections)
            idle = self._oldest_idle() if self.limits.replace_idle else None
            self._rejected.add(idle or connection)
        self._connections[connection] = None
        self._empty.clear()
        if idle is not None:
            idle.abort()
        return not is_full or idle is not None

    def update(self, limits: HttpLimits) -> None:
        """Change the limits, and call `update_serving` of each connection."""
        self.limits = limits
        for connection in self._connections:
            connection.update_serving()

    def states(self) -> Counter[str]:
        """Return the number of connections by state."""
        return Counter(connection.state.name for connection in self._connections)

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def overloaded(self) -> bool:
        """Return whether to close rejected connections without waiting for their clients."""
        return self.limits.replace_idle or len(self._rejected) > _MAX_REJECTED

    def unregister(self, connection: TimedConnection) -> None:
        """Remove a closed connection."""
        self._connections.pop(connection, None)
        self._rejected.discard(connection)
        if not self._connections:
            self._empty.set()

    async def drain(self) -> None:
        """Close every connection after its current request. Wait until all are closed."""
        self.draining = True
        for connection in tuple(self._connections):
            connection.drain()
        await self._empty.wait()

    def close(self) -> None:
        """Stop the timer and abort every connection."""
        self._timer.cancel()
        for connection in tuple(self._connections):
            connection.abort()

    def _oldest_idle(self) -> TimedConnection | None:
        """Return the oldest IDLE or READING connection. Without one, the oldest in CLOSING."""
        for states in ((State.IDLE, State.READING), (State.CLOSING,)):
            for each in self._connections:
                if each.state in states and each not in self._rejected:
                    return each
        return None

    def _sweep(self) -> None:
        """Time out some of the connections past their deadline, and schedule the next sweep."""
        now = self._loop.time()
        if not self._expired:
            # Reversed, so that `pop` takes the oldest first.
            self._expired = [each for each in reversed(self._connections) if each.deadline <= now]
        try:
            for _ in range(min(_EXPIRE_BATCH, len(self._expired))):
                connection = self._expired.pop()
                if connection.deadline <= now:  # the connection may have closed meanwhile
                    connection.on_timeout()
        finally:  # an error of one connection must not end the timeouts of all
            pause = _EXPIRE_PAUSE if self._expired else _SWEEP_INTERVAL
            self._timer = self._loop.call_later(pause, self._sweep)

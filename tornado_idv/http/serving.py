"""An application with its limits, and the objects that all connections share."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from tornado.httputil import HTTPServerConnectionDelegate

from tornado_idv.http.connection_table import ConnectionTable, HttpLimits
from tornado_idv.http.exchange import Peer, ResponseSink
from tornado_idv.http.fair_queue import FairQueue, Resume
from tornado_idv.http.trusted_proxies import TrustedProxies


class Pending(Protocol):
    """A request of the fast path. Its response is sent later, to its `ResponseSink`."""

    def close_after_response(self) -> None:
        """Close the connection when the response is complete."""

    def on_disconnect(self) -> None:
        """The client has disconnected."""


class KnownRequest(Protocol):
    """A request with a known head. It contains credentials: do not keep it.

    ``size`` is that of head and body; the body may be incomplete. With ``keep_alive`` the
    connection stays open after it.
    """

    @property
    def size(self) -> int: ...

    @property
    def keep_alive(self) -> bool: ...

    def respond(self, data: bytes, sink: ResponseSink) -> bytes | Pending | None:
        """Return the response to this request with the bytes ``data``, or a pending one.

        ``None`` sends it on the normal path. A client with a response from here counts as
        authenticated, as after `Exchange.authenticated`.
        """


Match = Callable[[bytes | bytearray], KnownRequest | None]
"""Returns the request at the start of bytes, ``None`` for an unknown head."""
FastPath = Callable[[Peer], Match]
"""A shortcut from the bytes of a request to its response, for each new connection."""
Reject = Callable[[HTTPStatus, str], bytes]
"""Renders and logs the response to a request rejected before the application. Takes the status
and the peer's address."""


@dataclass(frozen=True, slots=True)
class Serving:
    """An application and its limits.

    ``reject`` renders and logs the response to a request that does not reach the application.
    ``fast_path`` answers known requests without the application. With ``keep_alive`` a
    connection stays open after a response if the client permits it.
    """

    app: HTTPServerConnectionDelegate
    reject: Reject
    limits: HttpLimits
    fast_path: FastPath | None = None
    proxies: TrustedProxies | None = None
    keep_alive: bool = True


@dataclass(slots=True)
class ServerContext:
    """The current `Serving`, and the parts that all connections share."""

    serving: Serving
    loop: AbstractEventLoop
    connections: ConnectionTable
    authenticated: FairQueue
    """Authenticated clients with a request that is pipelined, or not answered on the fast path."""
    unauthenticated: FairQueue
    written: Future[None]
    """A completed future: Tornado's handlers do not wait for the client to read."""

    def leave_queues(self, resume: Resume) -> None:
        """Remove a connection from the queue it may wait in."""
        self.authenticated.cancel(resume)
        self.unauthenticated.cancel(resume)

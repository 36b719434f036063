"""The interface of the fast path, and the objects shared by all connections."""

import asyncio
from asyncio import Future
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
    """A running request of the fast path. It sends its response to its `ResponseSink` later."""

    def close_after_response(self) -> None:
        """Close the connection when the response is complete."""

    def on_disconnect(self) -> None:
        """Handle the disconnection of the client."""


class KnownRequest(Protocol):
    """A request that the fast path can serve, recognized by its head.

    ``size`` is the size of head and body. The body may be incomplete. With ``keep_alive`` the
    connection stays open after the response. Do not keep the object: it contains the client's key.
    """

    @property
    def size(self) -> int: ...

    @property
    def keep_alive(self) -> bool: ...

    def respond(self, data: bytes, sink: ResponseSink) -> bytes | Pending | None:
        """Return the response, or a pending request. ``data`` are the bytes of this request.

        ``None`` means that the application must handle the request. After any other result, the
        client counts as authenticated.
        """


Match = Callable[[bytes | bytearray], KnownRequest | None]
"""A function that recognizes the request at the start of the bytes, or returns ``None``."""
FastPath = Callable[[Peer], Match]
"""A function that returns the `Match` for a new connection."""
Reject = Callable[[HTTPStatus, str], bytes]
"""A function that renders and logs the response to a request rejected by the server. Its arguments
are the status and the peer's address."""


@dataclass(frozen=True, slots=True)
class Serving:
    """An application and its limits.

    If ``fast_path`` recognizes the head of a request, it responds in place of the application. With
    ``keep_alive``, a connection stays open after a response if the client permits this.
    """

    app: HTTPServerConnectionDelegate
    reject: Reject
    limits: HttpLimits
    fast_path: FastPath | None = None
    proxies: TrustedProxies | None = None
    keep_alive: bool = True


class ServerContext:
    """The current `Serving`, and the parts that all connections share."""

    def __init__(self, serving: Serving, timer: Callable[[], float]) -> None:
        self.serving = serving
        self.loop = loop = asyncio.get_running_loop()
        self.connections = ConnectionTable(loop, serving.limits)
        self.authenticated = FairQueue(loop, timer, budget=0.001)
        """For authenticated clients: pipelined requests, and those not served by the fast path."""
        self.unauthenticated = FairQueue(loop, timer, rate=1000)
        self.written: Future[None] = loop.create_future()
        """Each write returns this completed future, so handlers do not wait for slow clients."""
        self.written.set_result(None)

    def leave_queues(self, resume: Resume) -> None:
        """Remove a connection from both queues."""
        self.authenticated.cancel(resume)
        self.unauthenticated.cancel(resume)

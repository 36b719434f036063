"""Context that all connections of one server share."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from tornado.httputil import HTTPServerConnectionDelegate

from tornado_idv.http.connections import ConnectionTable, HttpLimits
from tornado_idv.http.exchange import Exchange, Peer
from tornado_idv.http.fair_queue import FairQueue
from tornado_idv.http.trusted_proxies import TrustedProxies


class FastPath(Protocol):
    """A shortcut from the bytes of a request to its response; one object for each connection."""

    def respond(self, segment: bytes) -> bytes | None:
        """Return the response to ``segment``, which may be one whole request.

        ``None`` sends it on the normal path. A client with a response from here counts as
        authenticated, as after `Exchange.authenticated`.
        """

    def store(self, exchange: Exchange) -> None:
        """Learn from a completed exchange whose `Exchange.cacheable` is set."""


Reject = Callable[[HTTPStatus, str], bytes]
"""Renders, and logs, the response to a request that is rejected before the application sees
it; takes the status and the peer's address."""


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The application and the shared parts of a server, as a connection needs them."""

    app: HTTPServerConnectionDelegate
    reject: Reject
    fast_path: Callable[[Peer], FastPath] | None
    proxies: TrustedProxies | None
    limits: HttpLimits
    loop: AbstractEventLoop
    connections: ConnectionTable
    pipelined: FairQueue
    """Authenticated clients whose next request has arrived already."""
    unauthenticated: FairQueue
    writable: Future[None]
    """A completed future: no back-pressure."""

"""One request and its answer: where the connection and Tornado's application meet."""

from __future__ import annotations

import time
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from tornado_idv.server.head import Head
from tornado_idv.web.answers import answer_bytes, new_request_id
from tornado_idv.web.packets import Meaning
from tornado_idv.web.proxies import TrustedProxies

# Tornado gives each answer these; ours are written by `answer_bytes`.
_WRITTEN = frozenset({"Server", "Content-Type", "Date", "Content-Length"})


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end: what Tornado calls the context of a connection."""

    remote_ip: str
    protocol: str
    proxies: TrustedProxies | None = None

    def caller(self, forwarded: str) -> str:
        """The address of whoever asks, by what ``X-Forwarded-For`` says if that is believed."""
        proxies = self.proxies
        return self.remote_ip if proxies is None else proxies.caller(self.remote_ip, forwarded)


class Channel(Protocol):
    """What an exchange needs of its connection."""

    def send(self, data: bytes) -> Future[None]:
        """Writes bytes; the future is done when more may be written."""

    def answered(self, *, keep_alive: bool) -> None:
        """The answer is complete; ``keep_alive`` says whether another request may follow."""


class Exchange(HTTPConnection):
    """Gives one whole request to an application, and takes its answer as bytes.

    ``request_id`` is the caller's, if it may be, else a new one. ``meaning`` is set by a
    handler that understood the request. ``packet`` are the bytes that the request began with, if
    they came by themselves.
    """

    def __init__(self, channel: Channel, head: Head, peer: Peer, packet: bytes = b"") -> None:
        self.context = peer
        self.remote = peer.caller(head.forwarded)
        self.head = head
        self.packet = packet
        self.meaning: Meaning | None = None
        self.has_key = False
        self.began = time.monotonic()
        self.request_id = head.request_id or new_request_id()
        self.understood = head.understood
        self._channel = channel
        self._keep_alive = head.keep_alive
        self._on_close: Callable[[], None] | None = None

    def begin(self, app: HTTPServerConnectionDelegate, body: bytes) -> None:
        """Hands the request to the application, which answers now or later."""
        delegate = app.start_request(self, self)
        delegate.headers_received(self.head.start_line, self.head.headers)
        if body:
            delegate.data_received(body)
        delegate.finish()

    def last(self) -> None:
        """No other request is to follow on this connection."""
        self._keep_alive = False

    def lost(self) -> None:
        """The caller has left: the handler is told, and its answer goes nowhere."""
        callback, self._on_close = self._on_close, None
        if callback is not None:
            callback()

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        """Names what is to be called if the caller leaves before the answer is complete."""
        self._on_close = callback

    def write_headers(
        self,
        start_line: RequestStartLine | ResponseStartLine,
        headers: HTTPHeaders,
        chunk: bytes | None = None,
    ) -> Future[None]:
        """Sends the head of the answer and its body, which Tornado's `finish` gives as a whole."""
        extra = ""
        for name, value in headers.get_all():
            if name not in _WRITTEN:
                extra += f"{name}: {value}\r\n"
        if not self._keep_alive:
            extra += "Connection: close\r\n"
        elif self.head.start_line.version == "HTTP/1.0":
            extra += "Connection: keep-alive\r\n"
        length = int(headers["Content-Length"])
        return self._channel.send(
            answer_bytes(
                start_line.code,  # type: ignore[union-attr] # of an answer it is one
                self.request_id,
                chunk or b"",
                length,
                extra,
            )
        )

    def write(self, chunk: bytes) -> Future[None]:
        """Sends a further part of the body."""
        return self._channel.send(chunk)

    def finish(self) -> None:
        """Ends the answer."""
        self._channel.answered(keep_alive=self._keep_alive)

"""One request and its response, between a connection and the Tornado application."""

from asyncio import BaseTransport, Future
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

from tornado_idv.http.head import RequestHead
from tornado_idv.http.trusted_proxies import UNIX, TrustedProxies, normalize_address

_SPELLING = {
    "X-Request-Id": "X-Request-ID",
    "X-Idv-Request-Id": "X-IDV-Request-ID",
    "Ratelimit": "RateLimit",
    "Ratelimit-Policy": "RateLimit-Policy",
}
"""The spelling of header names by Tornado's `HTTPHeaders`, and the spelling to send. Clients may
depend on the upper and lower case that earlier versions of this service sent."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The remote end of a connection. Tornado calls it the context of the connection."""

    remote_ip: str
    protocol: str
    proxies: TrustedProxies | None = None

    @classmethod
    def of(cls, transport: BaseTransport) -> "Peer":
        """Return the remote end of a transport."""
        address = transport.get_extra_info("peername")
        protocol = "http" if transport.get_extra_info("sslcontext") is None else "https"
        if isinstance(address, str | bytes):  # a path, empty for most clients
            return cls(UNIX, protocol)
        return cls(normalize_address(address[0]) if address else "", protocol)


class ResponseSink(Protocol):
    """The methods of a connection that an `Exchange` and the fast path call."""

    def send(self, data: bytes) -> Future[None]:
        """Write bytes. Return a completed future, because Tornado expects a future."""

    def on_response_complete(self, *, keep_alive: bool) -> None:
        """Continue with the next request, or close the connection."""

    def reset(self) -> None:
        """Close the connection with a TCP reset."""


class Exchange(HTTPConnection):
    """Hands one request to an application and sends its response.

    The application responds by Tornado's `write_headers`, `write` and `finish`.
    """

    authenticated = False
    """Whether the handler has accepted the client's key. If so, later requests of the connection
    wait in the queue of authenticated clients."""

    def __init__(self, sink: ResponseSink, head: RequestHead, peer: Peer) -> None:
        self.head = head
        self.context = peer
        if peer.proxies is not None:
            forwarded_for = head.headers.get("X-Forwarded-For", "")
            client = peer.proxies.client_address(peer.remote_ip, forwarded_for)
            self.context = Peer(client, peer.protocol)
        self._sink = sink
        self._keep_alive = head.keep_alive
        self._on_close: Callable[[], None] | None = None

    def dispatch(self, app: HTTPServerConnectionDelegate, body: bytes) -> None:
        """Pass the request to the application. It responds now or later."""
        delegate = app.start_request(self, self)
        delegate.headers_received(self.head.start_line, self.head.headers)
        if body:
            delegate.data_received(body)
        delegate.finish()

    def close_after_response(self) -> None:
        """Close the connection when the response is complete."""
        self._keep_alive = False

    def reset(self) -> None:
        """Close the connection with a TCP reset. Later writes are discarded."""
        self._sink.reset()

    def on_disconnect(self) -> None:
        """Call the handler's close callback after the client has disconnected."""
        callback, self._on_close = self._on_close, None
        if callback is not None:
            callback()

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        """Set the function to call if the client disconnects before the end of the response."""
        self._on_close = callback

    def write_headers(
        self,
        start_line: RequestStartLine | ResponseStartLine,
        headers: HTTPHeaders,
        chunk: bytes | None = None,
    ) -> Future[None]:
        """Send the head of a response and the first part of its body.

        Without ``Content-Length``, the body ends when the connection closes (RFC 9112, 6.3).
        """
        if not isinstance(start_line, ResponseStartLine):
            raise TypeError("a response starts with a ResponseStartLine")
        lines = [f"HTTP/1.1 {start_line.code} {start_line.reason}"]
        lines += [f"{_SPELLING.get(name, name)}: {value}" for name, value in headers.get_all()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header field contains a line break")
        if "Content-Length" not in headers and (
            self.head.start_line.method != "HEAD" and start_line.code not in (204, 304)
        ):
            self._keep_alive = False
        connection = self.head.connection_field(keep_alive=self._keep_alive).rstrip()
        lines.insert(max(len(lines) - 1, 1), connection)  # always before the framing header
        head = "\r\n".join(filter(None, lines))
        return self._sink.send(f"{head}\r\n\r\n".encode("latin-1") + (chunk or b""))

    def write(self, chunk: bytes) -> Future[None]:
        """Send a further part of the body."""
        return self._sink.send(chunk)

    def finish(self) -> None:
        """End the response."""
        self._sink.on_response_complete(keep_alive=self._keep_alive)

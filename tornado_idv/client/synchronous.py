"""The synchronous client. It uses `http.client`."""

import io
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from http.client import HTTPConnection, HTTPException
from time import sleep
from typing import Any, Self

from tornado_idv.client.errors import Undetermined, Unexpected
from tornado_idv.client.lookup import Found, Lookup, Result, StaleConnection, User
from tornado_idv.client.protocol import MAX_IDLE_TIME, BaseClient

_MAX_IDLE = 16

_FIELDS = rb"[\t -~\x80-\xff]*\r\n(?:[!#-'*+.0-9A-Z^-z|~-]+:[\t -~\x80-\xff]*\r\n)*\r\n"
_HEADS = re.compile(rb"(?:HTTP/1\.1 100 %b)*HTTP/1\.[01] [2-5][0-9]{2} %b" % (_FIELDS, _FIELDS))
"""Pattern for the heads of interim responses (status 100), and then of the final response. It is
needed because `http.client` accepts invalid heads."""

_default_context = lru_cache(ssl.create_default_context)


class Client(BaseClient[User | None, User]):
    """A synchronous client with persistent connections. Any number of threads may share it.

    Only the resolution of the host name can exceed ``deadline``.
    """

    def _prepare(self) -> None:
        self._idle: deque[tuple[socket.socket, float, int]] = deque()
        self._tls = (self._ssl or _default_context()) if self._is_https else None

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop()[0].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find_many(self, identifiers: Iterable[str]) -> Iterator[Result]:
        """Yield the result for each nickname or profile URL, in order. Send batches of 100."""
        for items in self._batches("input", identifiers):
            yield from self._run(self._find_batch(items))

    def find_many_cards(self, numbers: Iterable[str]) -> Iterator[Result]:
        """Yield the result for each card number, in order. Send batches of 100."""
        for items in self._batches("card_number", numbers):
            yield from self._run(self._find_batch(items))

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            # Coroutines never suspend in this client, so the first `send` runs the whole call.
            while True:
                call.send(None)
        except StopIteration as end:
            return end.value

    async def _pause(self, seconds: float) -> None:
        (self._sleep or sleep)(seconds)

    async def _exchange(self, lookup: Lookup, fields: dict[str, str], *, is_new: bool) -> Found:
        kept = None if is_new else self._kept_socket()
        try:
            sock = kept or self._connect(lookup.remaining)
            return self._send(lookup, fields, _Stream(sock, lookup))
        except (OSError, UnicodeError) as error:
            is_closed = isinstance(error, (ConnectionError, ssl.SSLEOFError))
            kind = StaleConnection if kept and is_closed else Undetermined
            raise kind(f"no response: {type(error).__name__}") from None
        except HTTPException as error:
            raise Unexpected(f"not a response: {type(error).__name__}") from None

    def _send(self, lookup: Lookup, fields: dict[str, str], stream: "_Stream") -> Found:
        is_reusable, body = False, b""
        http: Any = HTTPConnection(self._host, self._port)
        http.sock = stream
        try:
            http.request("POST", lookup.path, lookup.body, fields)
            reply = http.getresponse()
            length = lookup.body_length(reply.headers.get_all)
            heads = _HEADS.match(stream.received)
            if length is not None and heads is not None:
                with suppress(ConnectionError, ssl.SSLError, HTTPException):
                    body = reply.read(length)
                # Bytes after the body would be read as the next response.
                is_all = len(body) == length == len(stream.received) - heads.end()
                is_reusable = is_all and http.sock is stream
            return lookup.read(reply.status, reply.headers.get_all, body)
        finally:
            if is_reusable and len(self._idle) < _MAX_IDLE:
                self._idle.append((stream.socket, self._clock(), os.getpid()))
            else:
                stream.socket.close()

    def _kept_socket(self) -> socket.socket | None:
        """Return the most recently used socket that is still usable, or ``None``.

        A forked process must not use the sockets of its parent.
        """
        with suppress(IndexError):
            while True:
                sock, since, process = self._idle.pop()
                is_ours = self._clock() - since < MAX_IDLE_TIME and process == os.getpid()
                if is_ours and _is_quiet(sock):
                    return sock
                sock.close()
        return None

    def _connect(self, remaining: Callable[[], float]) -> socket.socket:
        """Connect to the first address that accepts. Divide the remaining time among them."""
        addresses = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        for parts, (*kind, _, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
            sock = socket.socket(*kind)
            try:
                _bounded(sock, remaining() / parts).connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is None:
                    return sock
                bounded = _bounded(sock, remaining())
                return self._tls.wrap_socket(bounded, server_hostname=self._host)
            except OSError:
                sock.close()
                if parts == 1:
                    raise
        raise OSError("the host name has no address")


class _Stream(io.RawIOBase):
    """A socket for an `HTTPConnection`. Each read or write ends at the lookup's deadline."""

    def __init__(self, sock: socket.socket, lookup: Lookup) -> None:
        self.socket = sock
        self._lookup = lookup
        self.received = bytearray()

    def sendall(self, data: bytes) -> None:
        _bounded(self.socket, self._lookup.remaining()).sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        length = _bounded(self.socket, self._lookup.remaining()).recv_into(buffer)
        self.received += buffer[:length]
        if len(self.received) > 2 * self._lookup.max_body:  # with head and interim responses
            raise HTTPException
        return length

    def close(self) -> None:
        """Do nothing, because `HTTPConnection` calls this method before the body is read."""


def _is_quiet(sock: socket.socket) -> bool:
    """Return whether a connection is open and has no unread bytes. A proxy may have sent a 408."""
    sock.settimeout(0)
    try:
        sock.recv(1)
    except OSError as error:
        return isinstance(error, (BlockingIOError, ssl.SSLWantReadError))
    return False


def _bounded(sock: socket.socket, seconds: float) -> socket.socket:
    """Set the socket's timeout for the next step. Raises `TimeoutError` if no time is left."""
    if seconds <= 0:
        raise TimeoutError
    sock.settimeout(seconds)
    return sock

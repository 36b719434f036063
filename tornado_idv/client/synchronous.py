"""Synchronous client, on `http.client`."""

from __future__ import annotations

import io
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import lru_cache
from http.client import HTTPConnection, HTTPException
from time import sleep
from typing import Any, Self

from tornado_idv.client.errors import Undetermined, Unexpected
from tornado_idv.client.protocol import (
    MAX_BODY,
    MAX_IDLE_TIME,
    BaseClient,
    Lookup,
    StaleConnection,
    User,
)

_MAX_IDLE = 16
_MAX_RESPONSE = 2 * MAX_BODY
"""Bytes of a response with its head and the interim responses before it."""

_FIELDS = rb"[\t -~\x80-\xff]*\r\n(?:[!#-'*+.0-9A-Z^-z|~-]+:[\t -~\x80-\xff]*\r\n)*\r\n"
_HEADS = re.compile(rb"(?:HTTP/1\.1 100 %b)*HTTP/1\.[01] [2-5][0-9]{2} %b" % (_FIELDS, _FIELDS))
"""The head of a response, and interim ones before it: `http.client` also accepts others."""

_default_context = lru_cache(ssl.create_default_context)


class Client(BaseClient[User | None, User]):
    """A client for any number of threads, which keeps connections open.

    Only the resolution of the host name may take longer than ``deadline``.
    """

    def _prepare(self) -> None:
        self._idle: deque[_Connection] = deque()
        self._tls = (self._ssl or _default_context()) if self._is_https else None

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, call: Coroutine[Any, Any, User | None]) -> Any:
        try:
            while True:
                call.send(None)
        except StopIteration as end:
            return end.value

    async def _pause(self, seconds: float) -> None:
        (self._sleep or sleep)(seconds)

    async def _exchange(
        self, lookup: Lookup, fields: dict[str, str], *, is_new: bool = False
    ) -> User | None:
        kept = None if is_new else self._kept_connection()
        try:
            connection = kept or _Connection(self._host, self._port)
            return self._send(lookup, fields, connection)
        except (OSError, UnicodeError) as error:
            is_closed = isinstance(error, (ConnectionError, ssl.SSLEOFError))
            kind = StaleConnection if kept and not kept.received and is_closed else Undetermined
            raise kind(f"no response: {type(error).__name__}") from None
        except HTTPException as error:
            raise Unexpected(f"not a response: {type(error).__name__}") from None

    def _send(self, lookup: Lookup, fields: dict[str, str], connection: _Connection) -> User | None:
        is_reusable, body = False, b""
        try:
            connection.begin(lookup.remaining, self._tls)
            connection.http.request("POST", lookup.path, lookup.body, fields)
            reply = connection.http.getresponse()
            length = lookup.body_length(reply.headers.get_all)
            heads = _HEADS.match(connection.received)
            if length is not None and heads is not None:
                with suppress(ConnectionError, ssl.SSLError, HTTPException):
                    body = reply.read(length)
                is_all = len(body) == length == len(connection.received) - heads.end()
                is_reusable = is_all and connection.http.sock is connection
            return lookup.read(reply.status, reply.headers.get_all, body)
        finally:
            if is_reusable and len(self._idle) < _MAX_IDLE:
                connection.idle_since = self._clock()
                self._idle.append(connection)
            else:
                connection.shut()

    def _kept_connection(self) -> _Connection | None:
        """Return the connection that was used last, if it can still be used."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                is_recent = self._clock() - connection.idle_since < MAX_IDLE_TIME
                if is_recent and connection.process == os.getpid():
                    return connection
                connection.shut()
        return None


class _Connection(io.RawIOBase):
    """The socket of an `HTTPConnection`, where each step has the time left as its timeout."""

    idle_since = 0.0

    def __init__(self, host: str, port: int) -> None:
        self.http = HTTPConnection(host, port)
        self.process = os.getpid()  # another one must not read what is for this one
        self._socket: Any = None

    def begin(self, remaining: Callable[[], float], tls: ssl.SSLContext | None) -> None:
        """Begin an exchange; before the first one, connect to the first address that accepts.

        Each address gets an equal part of the time left.
        """
        self._remaining = remaining
        self.received = bytearray()
        if self._socket is not None:
            return
        host = self.http.host
        addresses = socket.getaddrinfo(host, self.http.port, type=socket.SOCK_STREAM)
        for parts, (*kind, _, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
            self._socket = socket.socket(*kind)
            try:
                self._bounded(parts).connect(address)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if tls is not None:
                    self._socket = tls.wrap_socket(self._bounded(), server_hostname=host)
                break
            except OSError:
                self.shut()
                if parts == 1:
                    raise
        self.http.sock = self

    def _bounded(self, parts: int = 1) -> Any:
        seconds = self._remaining() / parts
        if seconds <= 0:
            raise TimeoutError
        self._socket.settimeout(seconds)
        return self._socket

    def sendall(self, data: bytes) -> None:
        self._bounded().sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        length: int = self._bounded().recv_into(buffer)
        self.received += buffer[:length]
        if len(self.received) > _MAX_RESPONSE:
            raise HTTPException
        return length

    def close(self) -> None:
        """Do nothing: `HTTPConnection` closes its socket before the last response is read."""

    def shut(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()

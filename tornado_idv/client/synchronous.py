"""Synchronous client, on `http.client`."""

from __future__ import annotations

import io
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from http.client import HTTPConnection, HTTPException
from time import sleep
from typing import Any, Self

from tornado_idv.client.errors import ClientError, Undetermined, Unexpected
from tornado_idv.client.protocol import MAX_BODY, MAX_IDLE_TIME, BaseClient, Lookup, Response, User

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

    def _get(self, lookup: Lookup) -> User:
        return lookup.require(self._find(lookup))

    def _find(self, lookup: Lookup) -> User | None:
        try:
            while True:
                try:
                    return lookup.read(self._request(lookup))
                except Undetermined as error:
                    pause = lookup.pause(error)
                (self._sleep or sleep)(pause)
        except ClientError as error:
            raise lookup.named(error) from None

    def _request(self, lookup: Lookup) -> Response:
        fields = self._fields_of(lookup)
        try:
            kept = self._kept_connection()
            if kept is not None:
                try:
                    return self._exchange(kept, lookup, fields)
                except (ConnectionError, ssl.SSLEOFError):
                    if kept.received:
                        raise
            # A lookup changes nothing, so it may be sent again.
            return self._exchange(_Connection(self._host, self._port, self._tls), lookup, fields)
        except (OSError, UnicodeError) as error:
            raise Undetermined(f"no response: {type(error).__name__}") from None
        except HTTPException as error:
            raise Unexpected(f"not a response: {type(error).__name__}") from None

    def _exchange(
        self, connection: _Connection, lookup: Lookup, fields: dict[str, str]
    ) -> Response:
        is_reusable = False
        try:
            connection.begin(lookup.remaining)
            connection.http.request("POST", lookup.path, lookup.body, fields)
            reply = connection.http.getresponse()

            def values(name: str) -> list[str]:
                return reply.headers.get_all(name, [])

            length, body = lookup.body_length(values), b""
            heads = _HEADS.match(connection.received)
            if length is None or heads is None:
                return Response(reply.status, values, None)
            with suppress(ConnectionError, ssl.SSLError, HTTPException):
                body = reply.read(length)
            is_complete = len(body) == length
            has_surplus = len(connection.received) > heads.end() + length
            is_reusable = is_complete and not has_surplus and connection.http.sock is connection
            return Response(reply.status, values, body if is_complete else None)
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
                if self._clock() - connection.idle_since < MAX_IDLE_TIME and connection.is_quiet():
                    return connection
                connection.shut()
        return None


class _Connection(io.RawIOBase):
    """The socket of an `HTTPConnection`, where each step has the time left as its timeout."""

    idle_since = 0.0

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self.http = HTTPConnection(host, port)
        self._tls = tls
        self._process = os.getpid()
        self._socket: Any = None

    def begin(self, remaining: Callable[[], float]) -> None:
        """Begin an exchange, and connect before the first one."""
        self._remaining = remaining
        self.received = bytearray()
        if self._socket is None:
            self._connect(self.http.host, self.http.port)

    def _connect(self, host: str, port: int) -> None:
        """Connect to the first address that accepts; each gets an equal part of the time left."""
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for tried, (family, kind, protocol, _, address) in enumerate(addresses, 1):
            self._socket = socket.socket(family, kind, protocol)
            try:
                self._bounded(len(addresses) - tried + 1).connect(address)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    self._socket = self._tls.wrap_socket(self._bounded(), server_hostname=host)
            except OSError:
                self.shut()
                if tried == len(addresses):
                    raise
            else:
                self.http.sock = self
                return

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

    def is_quiet(self) -> bool:
        """Return whether the connection is open, of this process, and without unread bytes."""
        if self._process != os.getpid():  # the other process may be reading
            return False
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Do nothing: `HTTPConnection` closes its socket before the last response is read."""

    def shut(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()

"""Synchronous client, on `http.client`."""

from __future__ import annotations

import http
import http.client
import io
import select
import socket
import ssl
import time
from collections import deque
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any, Self
from urllib.parse import SplitResult

from tornado_idv.client.errors import ClientError, Undetermined, Unexpected
from tornado_idv.client.protocol import (
    MAX_BODY,
    BaseClient,
    Lookup,
    Response,
    User,
)

_MAX_IDLE = 16
_STALE = (http.client.RemoteDisconnected, ConnectionError)
"""Errors of a kept connection that the server has closed in the meantime."""


_default_context = lru_cache(ssl.create_default_context)


class Client(BaseClient[User | None, User]):
    """A client for any number of threads, which keeps connections open.

    Only the resolution of the host name may take longer than ``deadline``.
    """

    @cached_property
    def _idle(self) -> deque[_Connection]:
        return deque()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get(self, lookup: Lookup) -> User:
        return lookup.require(self._find(lookup))

    def _find(self, lookup: Lookup) -> User | None:
        until = time.monotonic() + self._deadline
        try:
            while True:
                try:
                    return lookup.read(self._request(lookup, until))
                except Undetermined as error:
                    time.sleep(lookup.pause(error, until - time.monotonic()))
        except ClientError as error:
            raise lookup.named(error) from None

    def _request(self, lookup: Lookup, until: float) -> Response:
        connection = self._idle_connection()
        try:
            try:
                if connection is not None:
                    return self._exchange(connection, lookup, until)
            except _STALE:
                pass  # a lookup changes nothing, so it may be sent again
            return self._exchange(_Connection(self._url, self._ssl), lookup, until)
        except (http.client.RemoteDisconnected, OSError) as error:
            raise Undetermined(f"no response: {type(error).__name__}") from None
        except (http.client.HTTPException, ValueError) as error:
            raise Unexpected(f"not a complete response: {type(error).__name__}") from None

    def _exchange(self, connection: _Connection, lookup: Lookup, until: float) -> Response:
        connection.until = until
        is_reusable = False
        try:
            connection.request("POST", lookup.path, lookup.body, self._fields(lookup))
            with connection.getresponse() as reply:
                body = reply.read(MAX_BODY + 1)
                if len(body) > MAX_BODY or (reply.length or 0) > 0:
                    raise http.client.IncompleteRead(b"")
                is_reusable = not reply.will_close and reply.status >= http.HTTPStatus.OK
            fields = {name.lower(): value for name, value in reply.headers.items()}
            return Response(reply.status, fields, body)
        finally:
            if is_reusable and len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
            else:
                connection.close()

    def _idle_connection(self) -> _Connection | None:
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.is_quiet():
                    return connection
                connection.close()
        return None


class _Connection(http.client.HTTPConnection):
    """A connection whose every step ends at ``until``, a monotonic time."""

    until = 0.0

    def __init__(self, url: SplitResult, context: ssl.SSLContext | None) -> None:
        is_https = url.scheme == "https"
        super().__init__(url.hostname or "", url.port or (443 if is_https else 80))
        self._tls = (context or _default_context()) if is_https else None

    def connect(self) -> None:
        error: OSError = OSError("no address")
        for *_, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            try:
                sock = socket.create_connection((str(address[0]), self.port), remaining(self.until))
            except OSError as each:
                error = each
            else:
                break
        else:
            raise error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            sock.settimeout(remaining(self.until))
            sock = self._tls.wrap_socket(sock, server_hostname=self.host)
        self.sock: Any = _TimedSocket(sock, self)

    def is_quiet(self) -> bool:
        """Return whether the server has neither closed the connection nor sent anything."""
        poll = select.poll()
        poll.register(self.sock.sock, select.POLLIN)
        return not poll.poll(0)


class _TimedSocket(io.RawIOBase):
    """A socket as `http.client` uses it; each operation gets the time that is left."""

    def __init__(self, sock: socket.socket, connection: _Connection) -> None:
        self.sock = sock
        self._connection = connection

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self.sock, self._connection))

    def sendall(self, data: bytes) -> None:
        self.sock.settimeout(remaining(self._connection.until))
        self.sock.sendall(data)

    def close(self) -> None:
        self.sock.close()


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, connection: _Connection) -> None:
        self._sock = sock
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(remaining(self._connection.until))
        return self._sock.recv_into(buffer)


def remaining(until: float) -> float:
    """Return the seconds up to a monotonic time; raises `TimeoutError` if there are none."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds

"""The connections of one backend: aiohttp makes, keeps and reads them, and we write to them.

What `aiohttp.ClientSession.request` does besides (cookies, redirects, proxies, traces, headers
of its own) is not wanted here, and takes more time than all else that a lookup needs. So a
request goes to a connection of the session's pool without it. How the session itself uses
`ClientRequest`, ``connect``, ``set_response_params`` and ``read`` is documented nowhere; this is
the one place that knows, a test compares the two, and `setup.py` lets in no aiohttp that was not
tried.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from multidict import MultiMapping
from yarl import URL

from idv_upstream.resolver import OwnResolver

WantsBody = Callable[[int], bool]
"""Whether the body of an answer of this status is to be read."""

CONNECT_TIMEOUT = 0.5

# Shorter than the 5 s after which many servers close an idle connection (this service: 10 s):
# otherwise a request may be sent just as the other side closes.
_KEEP_ALIVE = 4.0
_PARTS = re.compile(r"([^/]+//[^/?]*)([!\x22$-~]*)")
_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")
_SWITCHING = 101
_INTERIM = range(100, 200)


class _Place(aiohttp.ClientRequest):
    """Where to connect, in aiohttp's words."""

    @cached_property
    def connection_key(self) -> ConnectionKey:
        return super().connection_key


class Received(NamedTuple):
    """An answer as it came. ``body`` is ``None`` where it was not wanted."""

    status: int
    headers: MultiMapping[str]
    """Found in whatever case they are asked for."""
    body: bytes | None


class _Exchange:
    """One request and its answer on a connection."""

    __slots__ = ("_connection", "_content", "_protocol", "_timer")

    def __init__(
        self, connection: Connection, loop: asyncio.AbstractEventLoop, deadline: float
    ) -> None:
        self._connection = connection
        self._protocol: ResponseHandler = connection.protocol  # type: ignore[assignment]
        self._content: aiohttp.StreamReader = aiohttp.EMPTY_PAYLOAD
        self._timer = loop.call_at(deadline, self._expire)

    async def answer(
        self, request: bytes, wants_body: WantsBody, most: int, *, has_body: bool
    ) -> Received:
        """Sends the request, and takes what comes, but no more than ``most`` bytes of a body."""
        protocol = self._protocol
        protocol.set_response_params(
            skip_payload=not has_body, read_until_eof=True, auto_decompress=False
        )
        transport = protocol.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError
        transport.write(request)
        status = _INTERIM[0]
        while status in _INTERIM and status != _SWITCHING:
            try:
                message, self._content = await protocol.read()
            except aiohttp.EofStream:
                raise aiohttp.ServerDisconnectedError from None
            status = message.code
        if not wants_body(status):
            return Received(status, message.headers, None)
        if self._content.is_eof():  # a short body is there as a whole, nearly always
            return Received(status, message.headers, self._content.read_nowait(most))
        body = bytearray()
        while chunk := await self._content.read(most - len(body)):
            body += chunk
        return Received(status, message.headers, bytes(body))

    def end(self) -> None:
        """Keeps the connection for the next request, if the answer was read to its end."""
        self._timer.cancel()
        self._connection.release()

    def abort(self) -> None:
        """Closes the connection."""
        self._timer.cancel()
        self._connection.close()

    def _expire(self) -> None:
        error = aiohttp.SocketTimeoutError()
        self._protocol.set_exception(error)
        self._content.set_exception(error)


class Connections:
    """At most so many at a time; who finds none free waits for one."""

    _session: aiohttp.ClientSession
    _connector: aiohttp.BaseConnector
    _loop: asyncio.AbstractEventLoop

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: dict[str, _Place] = {}
        self._usual = _to_connect(CONNECT_TIMEOUT)

    async def open(self) -> None:
        """Makes the pool; no connection is made before the first request."""
        self._loop = asyncio.get_running_loop()
        self._connector = aiohttp.TCPConnector(
            limit=self._most, keepalive_timeout=_KEEP_ALIVE, resolver=OwnResolver()
        )
        self._session = aiohttp.ClientSession(connector=self._connector)

    async def close(self) -> None:
        await self._session.close()

    async def ask(
        self,
        method: str,
        url: str,
        *,
        headers: str,
        body: bytes | None,
        tls: ssl.SSLContext,
        deadline: float,
        wants_body: WantsBody,
        most: int,
    ) -> Received:
        """Sends one request, once.

        ``headers`` are whole lines, without those that tell the host and the length. The answer
        is to be here at the ``deadline``, of the loop's clock; of its body no more than ``most``
        bytes are taken. Raises `ValueError` for what cannot be sent, and the errors of aiohttp.
        """
        parts = _PARTS.fullmatch(url)
        if parts is None or not (method.isascii() and method.isalpha()):
            raise ValueError("no request")
        place = self._place(parts[1], tls)
        target = parts[2] if parts[2][:1] == "/" else f"/{parts[2]}"
        host = place.headers["Host"]
        length = "" if body is None and method in _WITHOUT_BODY else _length(body)
        head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{headers}{length}\r\n".encode()
        request = head + body if body else head
        exchange = _Exchange(await self._connection(place, deadline), self._loop, deadline)
        try:
            received = await exchange.answer(request, wants_body, most, has_body=method != "HEAD")
        except BaseException:
            exchange.abort()
            raise
        exchange.end()
        return received

    def _place(self, origin: str, tls: ssl.SSLContext) -> _Place:
        place = self._places.get(origin)
        if place is None or place.ssl is not tls:
            place = self._places[origin] = _Place(
                "GET",
                URL(origin, encoded=True),
                loop=self._loop,
                session=self._session,
                ssl=tls,
            )
        return place

    async def _connection(self, place: _Place, deadline: float) -> Connection:
        """A connection on which no answer waits that nobody had asked for."""
        while True:
            try:
                connection = await self._connector.connect(place, [], self._timeout(deadline))
            except TimeoutError:
                raise aiohttp.ConnectionTimeoutError from None
            protocol = connection.protocol
            if protocol is not None and len(protocol) == 0:
                return connection
            connection.close()

    def _timeout(self, deadline: float) -> aiohttp.ClientTimeout:
        left = deadline - self._loop.time()
        return self._usual if left > CONNECT_TIMEOUT else _to_connect(max(left, 0.001))


def _to_connect(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=seconds)


def _length(body: bytes | None) -> str:
    return f"Content-Length: {len(body or b'')}\r\n"

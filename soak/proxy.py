"""A proxy for one HTTP service. It passes responses on or replaces them, as the current fault says.

A fault is a function that responds to one request. `FaultProxy.become` replaces the current fault,
also while connections are open. The proxy does not support pipelining.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from support.http.scripted_server import a_request, http, reset

_PIECE = bytes(64 * 1024)


@dataclass
class Exchange:
    """A request: its true response, by ``ask``, and the connection to respond on."""

    writer: asyncio.StreamWriter
    ask: Callable[[], Awaitable[bytes]]
    lifted: asyncio.Event
    """Set when the fault ends."""

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises `ConnectionError` if the client has closed the connection."""
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        reset(self.writer)


Fault = Callable[[Exchange], Awaitable[None]]


async def passing(exchange: Exchange) -> None:
    """Send the true response."""
    await exchange.send(await exchange.ask())


async def refusing(exchange: Exchange) -> None:
    """Reset open connections. `FaultProxy.become` also refuses new ones."""
    exchange.reset()


async def freezing(exchange: Exchange) -> None:
    """Send nothing until the fault ends."""
    await exchange.lifted.wait()
    exchange.reset()


async def resetting(exchange: Exchange) -> None:
    """Reset the connection before the end of the response."""
    await exchange.send((await exchange.ask())[:-10])
    exchange.reset()


async def cutting(exchange: Exchange) -> None:
    """Close the connection before the end of the response."""
    await exchange.send((await exchange.ask())[:-10])
    exchange.writer.close()


async def flooding(exchange: Exchange) -> None:
    """Send a response of 100 MB."""
    await exchange.send(http(200).replace(b"Length: 0", b"Length: 104857600"))
    for _ in range(1600):
        await exchange.send(_PIECE)


def dripping(tick: float) -> Fault:
    """Return a fault that sends one byte each ``tick`` seconds."""

    async def drip(exchange: Exchange) -> None:
        for byte in await exchange.ask():
            await exchange.send(bytes([byte]))
            with suppress(TimeoutError):
                await asyncio.wait_for(exchange.lifted.wait(), tick)

    return drip


def answering(answer: bytes) -> Fault:
    """Return a fault that sends the same response to each request."""

    async def answer_all(exchange: Exchange) -> None:
        await exchange.send(answer)

    return answer_all


class FaultProxy:
    """A proxy on a free port. ``target`` is the port of the service."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._fault: Fault = passing
        self._lifted = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._place = _bound(0)  # reserves the port while the server is closed
        self.port: int = self._place.getsockname()[1]

    async def become(self, fault: Fault) -> None:
        """Replace the current fault."""
        self._fault = fault
        self._lifted.set()
        self._lifted = asyncio.Event()
        if fault is refusing:
            await self.close()
        elif self._server is None:
            self._server = await asyncio.start_server(self._serve, sock=_bound(self.port))

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def release(self) -> None:
        """Release the port."""
        self._place.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while not writer.is_closing():
                    await self._answer(await a_request(reader), writer)
        finally:
            self._connections.discard(connection)
            writer.close()

    async def _answer(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        await self._fault(Exchange(writer, lambda: self._ask(request), self._lifted))

    async def _ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            writer.write(request)
            return await a_request(reader)
        finally:
            writer.close()


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    return sock


@asynccontextmanager
async def proxying(target: int) -> AsyncIterator[FaultProxy]:
    """Run a proxy in this event loop, without a fault."""
    proxy = FaultProxy(target)
    try:
        await proxy.become(passing)
        yield proxy
    finally:
        await proxy.close()
        proxy.release()

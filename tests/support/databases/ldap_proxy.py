"""A proxy in front of an LDAP server, which passes its responses on or spoils them.

A fault is a generator of the bytes that are sent instead of a response to a search.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from support.http.scripted_server import reset
from support.processes.threads import in_thread

Fault = Callable[[bytes], Iterator[bytes | None]]
"""Given a message, yields bytes, one event-loop iteration each; ``None`` resets the connection."""

_ENTRY, _DONE = 0x64, 0x65
_PIECE = bytes(64 * 1024)


def passing(message: bytes) -> Iterator[bytes | None]:
    """No fault."""
    yield message


def refusing(message: bytes) -> Iterator[bytes | None]:
    """Accept no connection; see `LdapProxy`."""
    yield None


def freezing(message: bytes) -> Iterator[bytes | None]:
    """Nothing comes any more."""
    yield from ()


def resetting(message: bytes) -> Iterator[bytes | None]:
    """The connection is reset in the middle of the response."""
    yield message[:-5]
    yield None


def dripping(message: bytes) -> Iterator[bytes | None]:
    """One byte after the other, and the connection is reset before the last one."""
    for at in range(len(message) - 1):
        yield message[at : at + 1]
    yield None


def flooding(message: bytes) -> Iterator[bytes | None]:
    """A message of 100 MB."""
    yield b"\x30\x84\x06\x40\x00\x00"
    for _ in range(1600):
        yield _PIECE
    yield None


def sending(data: bytes) -> Fault:
    """The same bytes instead of each response."""

    def send(_: bytes) -> Iterator[bytes | None]:
        yield data

    return send


def replacing(*pairs: tuple[bytes, bytes]) -> Fault:
    """A response with other bytes, as many as before."""

    def replace(message: bytes) -> Iterator[bytes | None]:
        for old, new in pairs:
            assert len(old) == len(new)
            message = message.replace(old, new)
        yield message

    return replace


def ending_with(code: int) -> Fault:
    """A search that ends with a result code, and without an entry."""

    def end(message: bytes) -> Iterator[bytes | None]:
        if _operation(message) == _DONE:
            result = bytes([0x0A, 1, code, 4, 0, 4, 0])
            content = _message_id(message) + bytes([_DONE, len(result)]) + result
            yield bytes([0x30, len(content)]) + content

    return end


def under_another_id(message: bytes) -> Iterator[bytes | None]:
    """The response to a search that was not sent."""
    at = _start(message)
    yield message[: at + 2] + bytes([message[at + 2] ^ 0x40]) + message[at + 3 :]


def _start(message: bytes) -> int:
    """Return the offset of the message id, behind the length of the message."""
    return 2 + (message[1] & 0x7F if message[1] & 0x80 else 0)


def _message_id(message: bytes) -> bytes:
    at = _start(message)
    return message[at : at + 2 + message[at + 1]]


def _operation(message: bytes) -> int:
    return message[_start(message) + len(_message_id(message))]


class LdapProxy:
    """The proxy; ``target`` is the port of the server."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._fault: Fault = passing
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def become(self, fault: Fault) -> None:
        """Replace the current fault; open connections are reset if none is to be accepted."""
        self._fault = fault
        if fault is refusing and self._server is not None:
            self._server.close()
            self._server = None
            for writer in self._writers:
                reset(writer)
        elif fault is not refusing and self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            passing_on = asyncio.create_task(self._pass_on(reader, far_writer))
            try:
                await self._respond(far_reader, writer)
            finally:
                passing_on.cancel()
                far_writer.close()
        self._writers.discard(writer)
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            message = await _read_message(reader)
            is_of_search = _operation(message) in {_ENTRY, _DONE}
            for data in (self._fault if is_of_search else passing)(message):
                if data is None:
                    reset(writer)
                    return
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(0)


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(2)
    length = head[1]
    if length & 0x80:
        more = await reader.readexactly(length & 0x7F)
        head, length = head + more, int.from_bytes(more)
    return head + await reader.readexactly(length)


@asynccontextmanager
async def _proxying(target: int) -> AsyncIterator[LdapProxy]:
    proxy = LdapProxy(target)
    await proxy.become(passing)
    yield proxy
    await proxy.become(refusing)


@contextmanager
def ldap_proxy(target: int) -> Iterator[tuple[int, Callable[[Fault], None]]]:
    """Run a proxy in a thread; yield its port, and a function that replaces its fault."""
    with in_thread(_proxying(target)) as (proxy, loop):

        def become(fault: Fault) -> None:
            asyncio.run_coroutine_threadsafe(proxy.become(fault), loop).result(10)

        yield proxy.port, become

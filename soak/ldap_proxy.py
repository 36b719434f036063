"""A proxy for an LDAP server. It passes responses on or replaces them, as the current fault says.

A fault is a generator of the bytes to send in place of a response to a search.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

from support.http.scripted_server import reset
from support.http.tcp_relay import Relay

Fault = Callable[[bytes], Iterator[bytes | None]]
"""Given a message, yields bytes, one event-loop iteration each; ``None`` resets the connection."""

_ENTRY, _DONE = 0x64, 0x65
_PIECE = bytes(64 * 1024)


def passing(message: bytes) -> Iterator[bytes | None]:
    """Send the true response."""
    yield message


def refusing(message: bytes) -> Iterator[bytes | None]:
    """Reset the connection. `LdapProxy.become` also refuses new ones."""
    yield None


def freezing(message: bytes) -> Iterator[bytes | None]:
    """Send nothing."""
    yield from ()


def resetting(message: bytes) -> Iterator[bytes | None]:
    """Reset the connection before the end of the response."""
    yield message[:-5]
    yield None


def dripping(message: bytes) -> Iterator[bytes | None]:
    """Send single bytes, and reset the connection before the last one."""
    for at in range(len(message) - 1):
        yield message[at : at + 1]
    yield None


def flooding(message: bytes) -> Iterator[bytes | None]:
    """Send a message of 100 MB."""
    yield b"\x30\x84\x06\x40\x00\x00"
    for _ in range(1600):
        yield _PIECE
    yield None


def sending(data: bytes) -> Fault:
    """Return a fault that sends these bytes in place of each response."""

    def send(_: bytes) -> Iterator[bytes | None]:
        yield data

    return send


def ending_with(code: int) -> Fault:
    """Return a fault that ends a search with a result code, and without an entry."""

    def end(message: bytes) -> Iterator[bytes | None]:
        if _operation(message) == _DONE:
            result = bytes([0x0A, 1, code, 4, 0, 4, 0])
            content = _message_id(message) + bytes([_DONE, len(result)]) + result
            yield bytes([0x30, len(content)]) + content

    return end


def under_another_id(message: bytes) -> Iterator[bytes | None]:
    """Send the response under the message id of another search."""
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


class LdapProxy(Relay):
    """A relay that responds to searches with a fault."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self._fault: Fault = passing

    async def become(self, fault: Fault) -> None:
        """Replace the current fault. The fault `refusing` also closes open connections."""
        self._fault = fault
        self.bar(["127.0.0.1"] if fault is refusing else [])

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        if sink.get_extra_info("sockname")[1] != self.port:  # to the server
            await super()._pass_on(source, sink)
            return
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                message = await _read_message(source)
                is_of_search = _operation(message) in {_ENTRY, _DONE}
                for data in (self._fault if is_of_search else passing)(message):
                    if data is None:
                        reset(sink)
                        return
                    sink.write(data)
                    await sink.drain()
                    await asyncio.sleep(0)
        sink.close()


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(2)
    length = head[1]
    if length & 0x80:
        more = await reader.readexactly(length & 0x7F)
        head, length = head + more, int.from_bytes(more)
    return head + await reader.readexactly(length)

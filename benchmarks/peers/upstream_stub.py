"""An upstream directory: ``GET /people/NICKNAME`` with a bearer token.

It has as little Python as possible, so it is never the bottleneck. An unknown user is 404, a wrong
token 401.
"""

from __future__ import annotations

import asyncio
import re
from typing import cast

import uvloop

from benchmarks import dataset
from benchmarks.peers.contract import PORT, UPSTREAM

_NICKNAME = re.compile(rb"GET /people/(user([0-9]{8})) ")
_TOKEN = f"\r\nAuthorization: Bearer {UPSTREAM['token']}\r\n".encode()
_FIRST_CARD = int(dataset.card_number(0))
_FOUND = b'{"login": "%b", "card": "%d", "plan": "Free", "active": true}'
_ABSENT = b'{"error": "no such person"}'
_RESPONSE = (
    b"HTTP/1.1 %b\r\nServer: stub\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
)


class Stub(asyncio.Protocol):
    """One connection. Requests arrive one at a time."""

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        request = self._received + data
        if not request.endswith(b"\r\n\r\n"):
            self._received = request
            return
        self._received = b""
        self._transport.write(respond(request))


def respond(request: bytes) -> bytes:
    """Return the response to one request."""
    if _TOKEN not in request:
        return _response(b"401 Unauthorized", _ABSENT)
    match = _NICKNAME.match(request)
    if match is None:
        return _response(b"404 Not Found", _ABSENT)
    return _response(b"200 OK", _FOUND % (match[1], _FIRST_CARD + int(match[2])))


def _response(status: bytes, body: bytes) -> bytes:
    return _RESPONSE % (status, len(body), body)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(Stub, "127.0.0.1", PORT, backlog=1024)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve())

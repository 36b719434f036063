"""An upstream on a free port that sends scripted responses, byte by byte."""

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Then = Literal["keep", "close", "reset", "drip", "flood"]
REQUEST_ID = b"%REQUEST-ID%"
OWN_ID = b"%OWN-ID%"
_IDS = {REQUEST_ID: "X-Request-ID", OWN_ID: "X-IDV-Request-ID"}
"""Headers of the request, whose values stand in an answer for these marks."""


class Said(NamedTuple):
    """What is sent after a request, and what is done to the connection then.

    A ``drip`` sends one more byte every 10 ms, a ``flood`` as many as are taken.
    """

    sent: bytes = b""
    then: Then = "keep"


@dataclass
class Scripted:
    """Gives each request the next of its answers, when the ``gate`` is open; the last one stays."""

    answers: list[Said]
    requests: list[bytes] = field(default_factory=list)
    port: int = 0
    scheme: str = "http"
    connections: list[asyncio.Task[None] | None] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    going_on: asyncio.Event = field(default_factory=asyncio.Event)
    flooded: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def address(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def targets(self) -> list[str]:
        return [request.split(b" ", 2)[1].decode() for request in self.requests]

    async def asked(self, times: int = 1) -> None:
        while len(self.requests) < times:
            self.arrived.clear()
            await asyncio.wait_for(self.arrived.wait(), 5)

    async def dripped(self) -> None:
        self.going_on.clear()
        if any(answer.then == "drip" for answer in self.answers):
            await asyncio.wait_for(self.going_on.wait(), 5)

    def say(self, *answers: Said | bytes) -> None:
        self.answers = as_said(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(asyncio.current_task())
        self.writers.append(writer)
        then = "keep"
        with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while then == "keep":
                request = await a_request(reader)
                self.requests.append(request)
                self.arrived.set()
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                await self.gate.wait()
                sent = answer.sent
                for mark, name in _IDS.items():
                    sent = sent.replace(mark, (header(request, name) or "-").encode())
                writer.write(sent)
                await writer.drain()
                then = answer.then
                await self._endless(then, writer)
        if then == "reset":
            reset(writer)
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    async def _endless(self, then: str, writer: asyncio.StreamWriter) -> None:
        piece, pause = (b"x" * 65536, 0.0) if then == "flood" else (b"x", 0.01)
        while then in {"drip", "flood"}:
            writer.write(piece)
            await writer.drain()
            self.flooded += len(piece)
            self.going_on.set()
            await asyncio.sleep(pause)


def reset(writer: asyncio.StreamWriter) -> None:
    """Closes with RST, whatever is still unsent."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def a_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return head + await reader.readexactly(int(length[1]) if length else 0)


def as_said(answers: Sequence[Said | bytes]) -> list[Said]:
    return [Said(each) if isinstance(each, bytes) else each for each in answers]


@asynccontextmanager
async def serving(
    *answers: Said | bytes, tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[Scripted]:
    """Listens while the block runs, and waits for its connections to end after it."""
    upstream = Scripted(as_said(answers), scheme="https" if tls else "http")
    # With the default backlog, the kernel tells the clients of a crowd to try again in a second.
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", port, ssl=tls, backlog=1000)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        upstream.gate.set()
        if upstream.connections:
            await asyncio.wait(filter(None, upstream.connections), timeout=5)


@contextmanager
def full_listener() -> Iterator[tuple[str, int]]:
    """Yield an address that neither accepts nor refuses a connection."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0)
            with suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield listener.getsockname()


def http(status: int, body: bytes = b"", *headers: str, kind: str = "application/json") -> bytes:
    """An answer, framed by its length unless the headers say otherwise."""
    lines = [f"HTTP/1.1 {status} Canary", f"Content-Type: {kind}", *headers]
    if not any(header.startswith("Transfer-Encoding") for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(body: bytes, size: int = 5000) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return http(200, chunks + b"0\r\n\r\n", "Transfer-Encoding: chunked")


def header(request: bytes, name: str) -> str | None:
    values = re.findall(rb"(?im)^%b: (.*?)\r$" % re.escape(name.encode()), request)
    assert len(values) < 2
    return values[0].decode() if values else None

"""A server on a free port in the test's own loop, a handler of Tornado's, and one client of it."""

import asyncio
import socket
import ssl
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from support.fakes.clock_and_backends import LoopClock
from tornado_idv.http.connection import Connection
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.http.server import HttpServer
from tornado_idv.http.serving import Serving

POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]
LIMITS = HttpLimits(max_body=1000, idle_timeout=10.0, body_timeout=5.0)
_TIMEOUT = 30.0
"""Seconds for the server to respond, also on a busy machine."""


class HandlerControl:
    """What the handler does: it answers once it may."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.left = asyncio.Event()
        self.may_continue = asyncio.Event()
        self.may_continue.set()
        self.answer = b"{}"
        self.asked: list[bytes] = []


class Handler(RequestHandler):
    """Plays on the `HandlerControl`."""

    def initialize(self, control: HandlerControl) -> None:
        self.control = control

    async def get(self) -> None:
        await self.post()

    async def post(self) -> None:
        self.control.asked.append(self.request.body)
        self.control.begun.set()
        await self.control.may_answer.wait()
        if self.request.path == "/parts":
            self.set_header("Content-Length", 2 * len(self.control.answer))
            self.write(self.control.answer)
            await self.flush()
            await self.control.may_continue.wait()
            self.write(self.control.answer)
            await self.flush()
        elif self.request.path == "/fails":
            self.set_header("X-Partial", "1")
            self.write(b"partial")
            raise RuntimeError
        else:
            self.write(self.control.answer)
        self.finish()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.control.left.set()


class Client:
    """A client, and the service at the other end."""

    def __init__(
        self, control: HandlerControl, server: HttpServer, port: int, tls: ssl.SSLContext | None
    ) -> None:
        self.control = control
        self.server = server
        self.port = port
        self.tls = tls
        self.clock = LoopClock()
        self.clock.stop()
        self.reader: StreamReader
        self.writer: StreamWriter

    @property
    def connections(self) -> list[Connection]:
        return list(self.server.connections._connections)  # noqa: SLF001 - the size of a table

    @property
    def is_draining(self) -> bool:
        return self.server.connections.draining

    async def connect(self, receive: int = 0) -> None:
        sock = socket.socket()
        if receive:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        sock.setblocking(False)  # noqa: FBT003
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        self.reader, self.writer = await self.open(sock=sock, limit=1024)

    async def open(self, *address: Any, **options: Any) -> tuple[StreamReader, StreamWriter]:
        """Connect to an address, by TLS if the server has it."""
        if self.tls is not None:
            options |= {"ssl": self.tls, "server_hostname": "127.0.0.1"}
        return await asyncio.wait_for(asyncio.open_connection(*address, **options), 5)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        """Reads one answer."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), _TIMEOUT)
        length = int(head.rpartition(b"Content-Length: ")[2])
        await asyncio.wait_for(self.reader.readexactly(length), _TIMEOUT)
        return int(head.split()[1])

    async def rest(self) -> bytes:
        """All that still comes."""
        return await asyncio.wait_for(self.reader.read(-1), _TIMEOUT)

    async def forgotten(self) -> None:
        """Waits until the service has no connection left."""
        await asyncio.wait_for(until(lambda: not len(self.connections)), _TIMEOUT)


@asynccontextmanager
async def connected_client(
    limits: HttpLimits = LIMITS, tls: Contexts | None = None, receive: int = 0
) -> AsyncIterator[Client]:
    """A client that is connected, by TLS with the contexts of the server and of the client."""
    control = HandlerControl()
    acts = Handler, {"control": control}
    app = Application([(path, *acts) for path in ("/", "/parts", "/fails")], log_function=ignore)
    server = HttpServer(Serving(app, reject, limits))
    sock, port = bind_unused_port()
    server_tls, client_tls = tls or (None, None)
    await server.listen([sock], server_tls)
    client = Client(control, server, port, client_tls)
    await client.connect(receive)
    try:
        yield client
    finally:
        server.close()
        client.writer.close()
        await client.forgotten()


def reject(status: HTTPStatus, _: str) -> bytes:
    """The response to a request that never reached the application."""
    line = f"HTTP/1.1 {status.value} {status.phrase}\r\n"
    return f"{line}Connection: close\r\nContent-Length: 0\r\n\r\n".encode()


def ignore(_: RequestHandler) -> None:
    """Nothing is logged here."""


async def until(condition: Any) -> None:
    """Lets the loop turn until the condition holds."""
    async with asyncio.timeout(30):
        while not condition():  # in a thread, since the clock of the loop may stand still
            await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.001)

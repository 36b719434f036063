"""Another application for open connections, and for those that are being accepted or shaken."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import trustme
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from support.fakes.clock_and_backends import LoopClock
from support.fakes.stepped_loop import SteppedLoop
from support.http.http_server import ignore, reject
from support.http.in_process import FakeSocket
from tornado_idv.config.settings import TlsSettings
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.http.server import HttpServer
from tornado_idv.http.serving import Serving
from tornado_idv.service.sockets import tls_context

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def named(name: str) -> Application:
    class Handler(RequestHandler):
        def get(self) -> None:
            self.finish(name)

    return Application([("/", Handler)], log_function=ignore)


def test_connection_that_is_being_accepted_gets_the_new_application() -> None:
    """Its protocol is made before its handshake, which may take longer than a reload."""
    loop = SteppedLoop()

    async def make() -> HttpServer:
        return HttpServer(Serving(named("old"), reject, HttpLimits()))

    server = loop.run_until_complete(make())
    connection = server.connect()
    server.replace(Serving(named("new"), reject, HttpLimits(max_body=1)))
    socket = FakeSocket(loop, connection, "127.0.0.1")
    connection.connection_made(socket)
    loop.settle()
    socket.arrive(REQUEST)
    loop.settle()
    assert socket.sent.endswith(b"new")
    socket.arrive(REQUEST.replace(b"x\r\n", b"x\r\nContent-Length: 2\r\n"))
    loop.settle()
    assert b"HTTP/1.1 413 " in socket.sent
    server.close()
    loop.settle()
    loop.close()


async def test_new_connections_get_the_new_certificate_and_timeout(tmp_path: Path) -> None:
    """And an open one stays open. Without a new certificate the last one stays."""
    clock = LoopClock()
    authorities = trustme.CA(), trustme.CA()
    first, second = (certificate(each, tmp_path) for each in authorities)
    server = HttpServer(Serving(named("old"), reject, HttpLimits()))
    sock, port = bind_unused_port()
    await server.listen([sock], first)
    reader, writer = await connect(port, authorities[0])
    server.replace(Serving(named("new"), reject, HttpLimits(idle_timeout=1.0)), tls=second)
    writer.write(REQUEST)
    assert await asyncio.wait_for(reader.readuntil(b"new"), 10)
    without_handshake, third = await asyncio.open_connection("127.0.0.1", port)
    _, other = await connect(port, authorities[1])  # by then that one is accepted, too
    server.replace(Serving(named("newer"), reject, HttpLimits(idle_timeout=1.0)))
    _, same = await connect(port, authorities[1])
    clock.forward(1.5)
    assert await asyncio.wait_for(without_handshake.read(), 1) == b""
    server.close()
    for each in (writer, other, same, third):
        each.transport.abort()


async def connect(
    port: int, authority: trustme.CA
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, trusting one authority alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    opened = asyncio.open_connection("127.0.0.1", port, ssl=context)
    return await asyncio.wait_for(opened, 10)


def certificate(authority: trustme.CA, folder: Path) -> ssl.SSLContext:
    pem = folder / "pair.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    return tls_context(TlsSettings(cert_file=pem, key_file=pem))

"""The file of a Unix socket belongs to the process that has bound it, not to the server."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tornado.netutil import bind_unix_socket
from tornado.web import Application

from support.http.certificate import SELF_SIGNED
from support.http.http_server import LIMITS, ignore, reject
from tornado_idv.http.exchange import Peer
from tornado_idv.http.server import HttpServer
from tornado_idv.http.serving import Serving

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("drains", [False, True], ids=["close", "drain"])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_file_stays_when_server_ends(tmp_path: Path, run: Run, *, drains: bool, tls: bool) -> None:
    """Python 3.13 removes it by itself, and so does uvloop there."""
    path = tmp_path / "http.sock"
    context = None
    if tls:
        (tmp_path / "tls.pem").write_text(SELF_SIGNED)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "tls.pem")

    async def main() -> None:
        app = Application([], log_function=ignore)
        server = HttpServer(Serving(app, reject, LIMITS))
        await server.listen([bind_unix_socket(str(path))], context)
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.close()
        await writer.wait_closed()
        if drains:
            await server.drain()
        server.close()

    run(main())
    assert path.is_socket()


async def test_client_with_an_address_of_its_own_is_served(tmp_path: Path) -> None:
    """It is a path, or bytes of which the first is NUL. One who has left has none."""
    assert Peer.of(asyncio.Transport({"peername": None})).remote_ip == ""
    server = HttpServer(Serving(Application([], log_function=ignore), reject, LIMITS))
    await server.listen([bind_unix_socket(str(tmp_path / "http.sock"))])
    for address in (str(tmp_path / "client.sock"), f"\0{tmp_path}"):
        client = socket.socket(socket.AF_UNIX)
        client.bind(address)
        client.connect(str(tmp_path / "http.sock"))
        reader, writer = await asyncio.open_unix_connection(sock=client)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 404")
        writer.close()
    server.close()

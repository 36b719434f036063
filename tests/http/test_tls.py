"""The service behind a certificate of its own."""

import asyncio
import errno
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tornado.testing import bind_unused_port

from support.http.certificate import SELF_SIGNED
from support.http.http_server import LIMITS, POST, Contexts, connected_client, reject, until
from tornado_idv.config.settings import TlsSettings
from tornado_idv.errors import StartError
from tornado_idv.http.serving import Serving
from tornado_idv.service.sockets import tls_context


@pytest.mark.parametrize("pem", ["", "nonsense", SELF_SIGNED[:300]], ids=["empty", "no PEM", "cut"])
def test_unusable_certificate_is_reported(tmp_path: Path, pem: str) -> None:
    path = tmp_path / "tls.pem"
    path.write_text(pem)
    with pytest.raises(StartError, match="cannot be used for TLS"):
        tls_context(TlsSettings(cert_file=path, key_file=path))


def test_certificate_that_is_a_fifo_is_rejected(tmp_path: Path) -> None:
    """Loading it would block for ever, as nothing writes to it."""
    path = tmp_path / "tls.pem"
    os.mkfifo(path)
    with pytest.raises(StartError, match=r"tls\.pem: cannot be read: not a regular file$"):
        tls_context(TlsSettings(cert_file=path, key_file=path))


@pytest.fixture
def contexts(tmp_path: Path) -> Contexts:
    """What server and client speak TLS with."""
    pem = tmp_path / "tls.pem"
    pem.write_text(SELF_SIGNED, encoding="utf-8")
    return (
        tls_context(TlsSettings(cert_file=pem, key_file=pem)),
        ssl.create_default_context(cafile=str(pem)),
    )


async def test_http_is_negotiated(contexts: Contexts) -> None:
    _, client_tls = contexts
    client_tls.set_alpn_protocols(["h2", "http/1.1"])
    async with connected_client(tls=contexts) as client:
        tls = client.writer.get_extra_info("ssl_object")
        assert tls.selected_alpn_protocol() == "http/1.1"
        client.send(POST)
        assert await client.status() == 200


def test_tls_before_1_2_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contexts: Contexts
) -> None:
    """Also where the system's configuration would allow older versions."""
    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    lax.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    monkeypatch.setattr(ssl, "create_default_context", lambda _: lax)
    pem = tmp_path / "tls.pem"
    made = tls_context(TlsSettings(cert_file=pem, key_file=pem))
    assert made.minimum_version == ssl.TLSVersion.TLSv1_2


def test_tls_1_2_has_suites_with_authenticated_encryption_alone(contexts: Contexts) -> None:
    server, _ = contexts
    names = {each["name"] for each in server.get_ciphers() if each["protocol"] != "TLSv1.3"}
    ciphers = ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")
    assert names == {f"ECDHE-{kind}-{each}" for kind in ("ECDSA", "RSA") for each in ciphers}


async def test_handshake_times_out_after_three_seconds(contexts: Contexts) -> None:
    async with connected_client(tls=contexts) as client:
        silent, writer = await asyncio.open_connection("127.0.0.1", client.port)
        client.send(POST)
        assert await client.status() == 200  # by then the silent one is accepted, too
        client.clock.forward(2.5)
        client.send(POST)
        assert await client.status() == 200
        assert not silent.at_eof()
        client.clock.forward(1.0)
        assert await asyncio.wait_for(silent.read(), 2) == b""
        writer.close()
        client.send(POST)
        assert await client.status() == 200


async def test_new_timeout_applies_to_handshakes(contexts: Contexts) -> None:
    """A reload without a certificate leaves the last one."""
    async with connected_client(tls=contexts) as client:
        serving = client.server._context.serving  # noqa: SLF001 - handshakes that have begun
        limits = replace(LIMITS, idle_timeout=1.0)
        sock, port = bind_unused_port()
        await client.server.listen([sock], ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        for tls in (contexts[0], None):
            client.server.replace(Serving(serving.app, reject, limits), tls)
        silent, writer = await asyncio.open_connection("127.0.0.1", client.port)
        _, other = await client.open("127.0.0.1", port)  # by then that one is accepted
        client.clock.forward(1.5)
        await asyncio.wait_for(ended(silent), 5)
        for each in (writer, other):
            each.close()


async def test_tls_close_notify_is_not_a_half_close(
    contexts: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    """TLS has no half-closed connections, and asyncio warns of who expects them."""
    async with connected_client(tls=contexts) as client:
        client.control.may_answer.clear()
        client.send(POST)
        await asyncio.wait_for(client.control.begun.wait(), 5)
        client.writer.close()
        await asyncio.wait_for(client.control.left.wait(), 5)
        await client.forgotten()
        assert caplog.records == []


@pytest.mark.parametrize(("handshakes", "connections"), [(1000, 2), (18, 100)])
async def test_pending_handshakes_make_room_for_new_clients(
    contexts: Contexts, monkeypatch: pytest.MonkeyPatch, handshakes: int, connections: int
) -> None:
    """The oldest is aborted; connections that have ended their handshake stay."""
    monkeypatch.setattr("tornado_idv.http.server._HANDSHAKE_TIMEOUT", 60.0)
    monkeypatch.setattr("tornado_idv.http.server._MAX_HANDSHAKES", handshakes)
    limits = replace(LIMITS, max_connections=connections)
    async with connected_client(limits, tls=contexts) as client:
        silent = [await asyncio.open_connection("127.0.0.1", client.port) for _ in range(40)]
        _, writer = await client.open("127.0.0.1", client.port)
        client.send(POST)
        assert await client.status() == 200
        reads = [asyncio.create_task(ended(reader)) for reader, _ in silent]
        await until(lambda: sum(read.done() for read in reads) >= 20)
        client.send(POST)
        assert await client.status() == 200
        ends = [read.done() for read in reads]
        assert ends == [True] * ends.count(True) + [False] * ends.count(False)
        assert 20 <= ends.count(True) <= 30
        for each in (writer, *(writer for _, writer in silent)):
            each.close()
        await asyncio.gather(*reads)


async def test_handshake_that_has_ended_is_not_pending(contexts: Contexts) -> None:
    """However many there were, one that is under way is not aborted for a new one."""
    limits = replace(LIMITS, max_connections=2)
    async with connected_client(limits, tls=contexts) as client:
        silent, writer = await asyncio.open_connection("127.0.0.1", client.port)
        for _ in range(20):
            _, other = await client.open("127.0.0.1", client.port)
            other.close()
            await until(lambda: len(client.connections) == 1)
        assert not silent.at_eof()
        writer.close()


async def test_client_is_refused_at_once_where_no_handshake_makes_room(contexts: Contexts) -> None:
    """All descriptors are those of connections that stay: here of a single one."""
    async with connected_client(replace(LIMITS, max_connections=-15), tls=contexts) as client:
        client.clock.stop()
        with pytest.raises(ConnectionError):
            await client.open("127.0.0.1", client.port)


async def ended(reader: asyncio.StreamReader) -> None:
    """Return once the other side has closed the connection."""
    with suppress(ConnectionResetError):
        assert await reader.read(1) == b""


async def test_connection_over_the_limit_gets_503(contexts: Contexts) -> None:
    limits = replace(LIMITS, max_connections=1)
    async with connected_client(limits, tls=contexts) as client:
        reader, writer = await client.open("127.0.0.1", client.port)
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 503 ")
        writer.close()


async def test_drain_completes_a_handshake_that_has_begun(contexts: Contexts) -> None:
    """And the first request of that connection, as of one without TLS."""
    async with connected_client(tls=contexts) as client:
        client.clock.stop()
        client.send(POST)
        assert await client.status() == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        (acceptor,) = client.server._acceptors  # noqa: SLF001 - handshakes that have begun
        await until(lambda: len(acceptor._pending) == 1)  # noqa: SLF001 - handshakes that have begun
        drained = asyncio.ensure_future(client.server.drain())
        assert await client.rest() == b""
        client.writer.close()
        await client.forgotten()
        await writer.start_tls(contexts[1], server_hostname="127.0.0.1")
        await until(lambda: len(client.connections) == 1)
        assert not drained.done()
        writer.write(POST)
        reply = await asyncio.wait_for(reader.read(), 5)
        assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Connection: close\r\n" in reply
        writer.close()
        await asyncio.wait_for(drained, 5)


async def test_close_aborts_handshakes(contexts: Contexts) -> None:
    async with connected_client(tls=contexts) as client:
        client.clock.stop()
        silent, writer = await asyncio.open_connection("127.0.0.1", client.port)
        (acceptor,) = client.server._acceptors  # noqa: SLF001 - handshakes that have begun
        await until(lambda: len(acceptor._pending) == 1)  # noqa: SLF001 - handshakes that have begun
        ours, theirs = socket.socketpair()
        acceptor._begin(ours)  # noqa: SLF001 - it has not been waited for yet
        client.server.close()
        await until(silent.at_eof)
        assert ours.fileno() == -1
        theirs.close()
        writer.close()


async def test_drain_waits_for_responses_and_the_timeout_of_handshakes(contexts: Contexts) -> None:
    async with connected_client(tls=contexts) as client:
        client.clock.stop()
        silent, writer = await asyncio.open_connection("127.0.0.1", client.port)
        client.control.may_answer.clear()
        client.send(POST)
        await asyncio.wait_for(client.control.begun.wait(), 5)
        drained = asyncio.ensure_future(client.server.drain())
        for _ in range(5):  # it begins to wait
            await asyncio.sleep(0)
        await client.clock.advance(2.9)
        assert not silent.at_eof()
        client.clock.forward(0.2)
        await asyncio.wait_for(ended(silent), 5)
        assert not drained.done()
        client.control.may_answer.set()
        assert b"Connection: close\r\n" in await client.rest()
        client.writer.close()
        await asyncio.wait_for(drained, 5)
        writer.close()


class Exhausted(socket.socket):
    """A socket whose first client has left, and then the process has no descriptor left."""

    refused = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.refused += 1
        if self.refused == 1:
            raise ConnectionAbortedError
        if self.refused == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_accepting_resumes_when_descriptors_are_available(
    contexts: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = contexts
    async with connected_client(tls=contexts) as client:
        sock = Exhausted()
        sock.bind(("127.0.0.1", 0))
        await client.server.listen([sock], server)
        connecting = asyncio.ensure_future(client.open(*sock.getsockname()))
        await until(lambda: sock.refused == 2)
        await asyncio.sleep(0)
        client.clock.forward(1.5)
        _, writer = await connecting
        writer.close()
        assert [record.message for record in caplog.records] == [
            "cannot accept a connection (Too many open files); next attempt in 1 s"
        ]


async def test_accepting_is_not_resumed_after_the_close(
    contexts: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = contexts
    async with connected_client(tls=contexts) as client:
        sock = Exhausted()
        sock.bind(("127.0.0.1", 0))
        await client.server.listen([sock], server)
        with socket.create_connection(sock.getsockname()):
            await until(lambda: sock.refused == 2)
        client.server.close()
        await client.clock.advance(1.5)
    assert [record.message[:26] for record in caplog.records] == ["cannot accept a connection"]

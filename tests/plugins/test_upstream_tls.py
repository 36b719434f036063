"""TLS of connections to an upstream: trusted certificates, and our own."""

import asyncio
import logging
import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trustme
from aiohttp import ClientOSError, TCPConnector
from pydantic import ValidationError

from idv_upstream.transport import tls as tls_module
from idv_upstream.transport.client import NoResponse
from idv_upstream.transport.tls import Tls, TlsOptions
from support.fakes.clock_and_backends import Ticker
from support.http.scripted_server import serving
from support.http.upstream_transport import GOOD, POST, ask, failure_of, opened
from tornado_idv import Broken, LookupFailed, StartError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def ca(self, authority: trustme.CA) -> str:
        path = self.path / "ca.pem"
        path.write_bytes(authority.cert_pem.bytes())
        return str(path)

    def pair(self, authority: trustme.CA, name: str = "own") -> dict[str, str]:
        leaf = authority.issue_cert("us.example")
        cert, key = self.path / f"{name}.pem", self.path / f"{name}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        key.write_bytes(leaf.private_key_pem.bytes())
        return {"cert_file": str(cert), "key_file": str(key)}

    def joined(self, authority: trustme.CA) -> dict[str, str]:
        cert, key = map(Path, self.pair(authority).values())
        cert.write_bytes(cert.read_bytes() + key.read_bytes())
        return {"cert_file": str(cert)}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def server_side(
    authority: trustme.CA, clients: trustme.CA | None = None, name: str = "127.0.0.1", **flaw: Any
) -> ssl.SSLContext:
    """A server's context; with ``clients`` it demands a certificate of theirs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name, **flaw).configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def options(**members: Any) -> TlsOptions:
    return TlsOptions.model_validate(members)


async def test_certificate_signed_by_the_ca_file_is_accepted(
    authority: trustme.CA, folder: Folder
) -> None:
    trusted = options(ca_file=folder.ca(authority))
    async with (
        serving(GOOD, tls=server_side(authority)) as upstream,
        opened(upstream.address, tls=trusted) as made,
    ):
        for _ in range(3):
            assert (await ask(made)).status == 200
    assert len(upstream.connections) == 1


UNKNOWN = "unable to get local issuer certificate"
NOT_BELIEVED: dict[str, tuple[str, dict[str, Any], str]] = {
    "wrong host": ("ours", {"name": "x.example"}, "certificate is not valid for '127.0.0.1'"),
    "expired": ("ours", {"not_after": datetime(2001, 1, 1, tzinfo=UTC)}, "certificate has expired"),
    "another ca_file": ("another", {}, UNKNOWN),
    "the system's": ("none", {}, UNKNOWN),
}


@pytest.mark.parametrize(("ca", "flaw", "why"), NOT_BELIEVED.values(), ids=NOT_BELIEVED.keys())
async def test_invalid_certificate_is_broken(
    authority: trustme.CA, folder: Folder, ca: str, flaw: dict[str, Any], why: str
) -> None:
    """A `ca_file` replaces the authorities of the system."""
    trusted = authority if ca == "ours" else trustme.CA()
    tls = options() if ca == "none" else options(ca_file=folder.ca(trusted))
    async with (
        serving(GOOD, tls=server_side(authority, **flaw)) as upstream,
        opened(upstream.address, tls=tls) as made,
    ):
        failure = await failure_of(made)
    assert isinstance(failure, Broken)
    assert failure.reason.startswith("the TLS certificate is not trusted: ")
    assert failure.reason.endswith(why)
    assert upstream.requests == []


async def test_without_verification_any_certificate_is_accepted_with_a_warning(
    authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(GOOD, tls=server_side(authority)) as upstream:
        for _ in range(2):
            async with opened(upstream.address, tls=options(verify="false")) as made:
                assert (await ask(made)).status == 200
    text = "backend crm: tls.verify is false: certificates are not verified"
    assert caplog.messages == [text] * 2


async def test_plain_http_behind_an_https_url_is_unavailable() -> None:
    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Canary\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, opened(f"https://127.0.0.1:{port}") as made:
        failure = await failure_of(made)
    assert isinstance(failure, NoResponse)
    assert failure.reason == "TLS handshake failed"


# Our own certificate

VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


def serve_with_alerts(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Send TLS alerts, where a server of asyncio only closes the connection."""
    wrap = context.wrap_socket
    with suppress(OSError):
        while True:
            plain, _ = listener.accept()
            with wrap(plain, server_side=True, do_handshake_on_connect=False) as connection:
                with suppress(ssl.SSLError):
                    connection.do_handshake()
                    connection.recv(10_000)
                    connection.sendall(GOOD)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(10_000):
                    pass


async def with_our(
    authority: trustme.CA, tls: TlsOptions, version: ssl.TLSVersion
) -> int | LookupFailed:
    """What comes of a request to a server that demands a certificate."""
    context = server_side(authority, authority)
    context.minimum_version = context.maximum_version = version
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_with_alerts, args=(listener, context))
        thread.start()
        try:
            url = f"https://127.0.0.1:{listener.getsockname()[1]}"
            async with opened(url, tls=tls) as made:
                return (await ask(made)).status
        except LookupFailed as failure:
            return failure
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


@VERSIONS
async def test_client_certificate_is_sent(
    authority: trustme.CA, folder: Folder, version: ssl.TLSVersion
) -> None:
    """Its key may be in a file of its own or in the same one."""
    for own in (folder.pair, folder.joined):
        tls = options(ca_file=folder.ca(authority), **own(authority))
        assert await with_our(authority, tls, version) == 200


@VERSIONS
@pytest.mark.parametrize("shown", [False, True], ids=["none", "another's"])
async def test_missing_or_wrong_client_certificate_is_broken(
    authority: trustme.CA, folder: Folder, version: ssl.TLSVersion, *, shown: bool
) -> None:
    """It is our configuration that is wrong: a second attempt would not help."""
    members = {"ca_file": folder.ca(authority)}
    members |= folder.pair(trustme.CA()) if shown else {}
    failure = await with_our(authority, options(**members), version)
    assert isinstance(failure, Broken)
    assert failure.reason == "TLS refused: the client certificate is missing or not accepted"


async def test_alert_after_the_handshake_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened("https://127.0.0.1:1") as made:
        for alert in ("BAD_CERTIFICATE", "UNSUPPORTED_CERTIFICATE", "ACCESS_DENIED"):
            error = ClientOSError(1, f"[SSL: TLSV1_ALERT_{alert}] alert (_ssl.c:1)")
            monkeypatch.setattr(TCPConnector, "connect", AsyncMock(side_effect=error))
            assert (await failure_of(made)).reason.startswith("TLS refused: ")


# Files


async def test_unusable_files_are_start_errors(authority: trustme.CA, folder: Folder) -> None:
    ca, own, other = folder.ca(authority), folder.pair(authority), folder.pair(authority, "other")
    cert, other_key = own["cert_file"], other["key_file"]
    empty, absent = folder.path / "empty.pem", folder.path / "absent.pem"
    empty.touch()
    unusable = "cannot be used for TLS"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"ca_file": absent}, f"{absent}: cannot be read: No such file or directory"),
        ({"ca_file": empty}, f"{empty}: no certificates in PEM form"),
        ({"ca_file": folder.path}, f"{folder.path}: cannot be read: Is a directory"),
        ({"ca_file": ca, "cert_file": cert}, f"{cert} {unusable}: not a certificate and key"),
        (
            {"ca_file": ca, "cert_file": cert, "key_file": other_key},
            f"{cert} and {other_key} {unusable}: the key",
        ),
    ]
    for members, reported in wrong:
        with pytest.raises(StartError) as caught:
            await Tls(options(**members), "crm", Ticker()).open()
        assert str(caught.value).startswith(reported)


def test_key_without_a_certificate_is_rejected() -> None:
    with pytest.raises(ValidationError, match="1 validation"):
        options(key_file="a.key", cert_file=5)
    with pytest.raises(ValidationError, match="key_file needs cert_file") as caught:
        options(key_file="a.key")
    assert [each["loc"] for each in caught.value.errors()] == [("key_file",)]


async def test_replaced_certificate_is_used(
    authority: trustme.CA, folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticker, newcomers = Ticker(), trustme.CA()
    tls = options(ca_file=folder.ca(authority), **folder.joined(authority))
    async with (
        serving(GOOD, tls=server_side(authority, newcomers)) as upstream,
        opened(upstream.address, tls=tls, timer=ticker) as made,
    ):
        await failure_of(made, POST)
        folder.joined(newcomers)
        await failure_of(made, POST)
        ticker.now += 1
        assert (await ask(made)).status == 200
    assert caplog.messages == ["backend crm: TLS files reloaded"]


async def test_unusable_replacement_leaves_the_old_files_in_use(
    authority: trustme.CA, folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    ticker = Ticker()
    ca = Path(folder.ca(authority))
    tls = Tls(options(ca_file=str(ca)), "crm", ticker)
    await tls.open()
    first = tls.context()
    for spoil in (ca.unlink, ca.touch):
        spoil()
        ticker.now += 1
        assert tls.context() is tls.context() is first
    folder.ca(authority)
    ticker.now += 1
    second = tls.context()
    ticker.now += 1
    assert tls.context() is second is not first
    assert [message.split(": ")[:2] for message in caplog.messages] == [
        ["backend crm", "TLS files not reloaded"]
    ] * 2


async def test_tls_older_than_1_2_is_not_used(
    authority: trustme.CA, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = ssl.create_default_context

    def lenient(**named: Any) -> ssl.SSLContext:
        context = make(**named)
        with pytest.warns(DeprecationWarning, match="deprecated"):
            context.minimum_version = ssl.TLSVersion.TLSv1
        return context

    monkeypatch.setattr(ssl, "create_default_context", lenient)
    tls = Tls(options(ca_file=folder.ca(authority)), "crm", Ticker())
    await tls.open()
    assert tls.context().minimum_version == ssl.TLSVersion.TLSv1_2


async def test_change_while_the_files_are_read_is_noticed_by_the_next_check(
    authority: trustme.CA, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticker = Ticker()
    tls = Tls(options(ca_file=folder.ca(authority)), "crm", ticker)
    make = tls_module._context  # noqa: SLF001 - the contexts that are made

    def make_and_change(options: TlsOptions) -> ssl.SSLContext:
        context = make(options)
        folder.ca(trustme.CA())
        return context

    with monkeypatch.context() as patched:
        patched.setattr(tls_module, "_context", make_and_change)  # during the reading
        await tls.open()
    first = tls.context()
    ticker.now += 1
    assert tls.context() is not first

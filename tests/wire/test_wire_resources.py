"""What clients without a key can take from a real process: memory and descriptors."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from certificate import SELF_SIGNED
from inprocess import ask_for
from process_limits import descriptors
from running import Running, eventually, running
from serving import KEY

GREEDY = 100
SILENT = 400
DESCRIPTORS = 256
CONFIG = f"""\
profile_sites: [https://profiles.example]
server: {{port: 0, TLS}}
auth: {{keys: [{{id: caller, token: {KEY}}}]}}
backends: [{{name: users, kind: yaml, path: users.yaml}}]
"""
USERS = 'users: [{nickname: "@alice", card_number: "4000123412341234", plan: Free}]\n'
TLS = "tls: {cert_file: tls.pem, key_file: tls.pem}"


@contextmanager
def served(folder: Path, tls: str = "") -> Iterator[Running]:
    (folder / "users.yaml").write_text(USERS)
    (folder / "tls.pem").write_text(SELF_SIGNED)
    (folder / "config.yaml").write_text(CONFIG.replace("TLS", tls))
    with ExitStack() as stack:
        with descriptors(DESCRIPTORS):
            service = stack.enter_context(running(folder / "config.yaml", patience=60))
        yield service
        service.tell()
        assert service.ended() == 0
        assert "Traceback" not in service.told()


def status(sock: socket.socket) -> bytes:
    """Ask for a user, and return the status."""
    sock.sendall(ask_for("alice"))
    return sock.recv(4096)[9:12]


def resident(service: Running) -> int:
    """Bytes of memory of the process."""
    text = Path(f"/proc/{service.process.pid}/status").read_text()
    return 1024 * int(text.partition("VmRSS:")[2].split()[0])


def open_descriptors(service: Running) -> int:
    return len([*Path(f"/proc/{service.process.pid}/fd").iterdir()])


PIPELINED = {
    "bad keys": ask_for("alice", key="guessed"),
    "no keys": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("data", PIPELINED.values(), ids=PIPELINED)
def test_a_client_without_a_key_takes_less_than_100_kib(tmp_path: Path, data: bytes) -> None:
    """It sends requests ahead and reads no response."""
    with served(tmp_path) as service, ExitStack() as stack:
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as sock:
            assert status(sock) == b"200"
        before = resident(service)
        greedy = [stack.enter_context(socket.socket()) for _ in range(GREEDY)]
        for sock in greedy:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", service.port))
            sock.setblocking(False)  # noqa: FBT003
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            for sock in greedy:
                fill(sock, data * 100)
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as sock:
            assert status(sock) == b"200"
        assert resident(service) - before < GREEDY * 100 * 1024


def fill(sock: socket.socket, data: bytes) -> None:
    """Send until nothing more is taken."""
    try:
        while True:
            sock.send(data)
    except BlockingIOError:
        return


def test_silent_tls_clients_take_no_place_from_others(tmp_path: Path) -> None:
    with served(tmp_path, TLS) as service, ExitStack() as stack:
        trust = ssl.create_default_context(cafile=str(tmp_path / "tls.pem"))

        def connect() -> ssl.SSLSocket:
            sock = socket.create_connection(("127.0.0.1", service.port), timeout=10)
            return stack.enter_context(trust.wrap_socket(sock, server_hostname="127.0.0.1"))

        kept = connect()
        assert status(kept) == b"200"
        for number in range(SILENT):
            sock = socket.create_connection(("127.0.0.1", service.port), timeout=10)
            stack.enter_context(sock)
            if number % 100 == 0:
                assert status(connect()) == b"200"
        assert status(kept) == b"200"
        assert status(connect()) == b"200"
        assert open_descriptors(service) < DESCRIPTORS - 64
        eventually(lambda: open_descriptors(service) < 40)
        assert status(connect()) == b"200"

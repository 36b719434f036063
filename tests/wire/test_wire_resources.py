"""What clients without a key can take from a real process: memory and descriptors."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from support.http.certificate import SELF_SIGNED
from support.http.in_process import ask_for
from support.processes.process import ServiceProcess, eventually, running
from support.processes.process_usage import anonymous_memory, descriptors, wait_until_idle
from support.processes.service import KEY

pytestmark = pytest.mark.slow

FIRST, GREEDY = 4, 16
"""Clients of two crowds, each of which has hundreds of requests answered."""
SILENT = 360
DESCRIPTORS = 320
MAX_CONNECTIONS = DESCRIPTORS - 192
CONFIG = f"""\
profile_sites: [https://profiles.example]
server: {{port: 0, SERVER}}
auth: {{keys: [{{id: caller, token: {KEY}}}]}}
logging: {{level: LEVEL, format: json}}
backends: [{{name: users, kind: yaml, path: users.yaml}}]
"""
USERS = 'users: [{nickname: "@alice", card_number: "4000123412341234", plan: Free}]\n'
PATIENT = "idle_timeout: 5m"
TLS = f"{PATIENT}, tls: {{cert_file: tls.pem, key_file: tls.pem}}"
LENGTH_OF_A_RESPONSE = 350
MOST_OWED = 1024 * 1024
"""Bytes of responses on their way: ours, the kernel's on this side, and the kernel's on that."""


@contextmanager
def served(folder: Path, server: str = PATIENT, level: str = "warning") -> Iterator[ServiceProcess]:
    (folder / "users.yaml").write_text(USERS)
    (folder / "tls.pem").write_text(SELF_SIGNED)
    text = CONFIG.replace("SERVER", server).replace("LEVEL", level)
    (folder / "config.yaml").write_text(text)
    with ExitStack() as stack:
        with descriptors(DESCRIPTORS):
            service = stack.enter_context(running(folder / "config.yaml"))
        yield service
        service.send_signal()
        assert service.wait() == 0
        assert "Traceback" not in service.read_log()


def status(sock: socket.socket) -> bytes:
    """Ask for a user, and return the status."""
    sock.sendall(ask_for("alice"))
    return sock.recv(4096)[9:12]


BAD_KEY = ask_for("alice", key="guessed")
PIPELINED = {
    "plain": (PATIENT, 170),
    "TLS": (TLS, 512),  # 480 by Python 3.14, after other tests
}
"""Settings of the server, and how many KiB of memory a connection may take.

It takes 130 KiB, and 420 KiB by TLS. If it kept what it has received, it would take 85 KiB and
110 KiB more. An arena of the allocator has 1 MiB, of all connections together.
"""


@pytest.mark.parametrize(("server", "kib"), PIPELINED.values(), ids=PIPELINED)
def test_memory_of_a_client_without_a_key_is_bounded(tmp_path: Path, server: str, kib: int) -> None:
    """It sends requests ahead and reads no response.

    The difference between two crowds leaves out what the process loads once. There is no access
    log, whose pending lines take up to a megabyte.
    """
    with served(tmp_path, server) as service, ExitStack() as stack:
        trust = trusting(tmp_path) if server == TLS else None
        pid = service.process.pid

        def memory_with_another_crowd(size: int) -> int:
            socks = [stack.enter_context(connected(service, trust, 4096)) for _ in range(size)]
            greedy = [Greedy(sock, BAD_KEY * 100) for sock in socks]
            while sum(each.fill() for each in greedy):
                wait_until_idle([pid])
            return anonymous_memory(pid)

        before = memory_with_another_crowd(FIRST)
        assert memory_with_another_crowd(GREEDY) - before < GREEDY * kib * 1024
        assert status(stack.enter_context(connected(service, trust))) == b"200"


def trusting(folder: Path) -> ssl.SSLContext:
    """Trust the certificate in the folder."""
    return ssl.create_default_context(cafile=str(folder / "tls.pem"))


def connected(
    service: ServiceProcess, trust: ssl.SSLContext | None, receive: int = 65536
) -> socket.socket:
    """A connection, by TLS if there is something to trust."""
    sock = socket.socket()
    sock.settimeout(10)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    sock.connect(("127.0.0.1", service.port))
    if trust is None:
        return sock
    return trust.wrap_socket(sock, server_hostname="127.0.0.1")


class Greedy:
    """A client that sends the same bytes again and again, and reads nothing."""

    def __init__(self, sock: socket.socket, data: bytes) -> None:
        sock.setblocking(False)  # noqa: FBT003
        self._sock = sock
        self._data = data
        self._rest = memoryview(data)

    def fill(self) -> bool:
        """Send until nothing more is taken; return whether anything was."""
        sent = False
        with suppress(BlockingIOError, ssl.SSLWantWriteError):
            while True:
                self._rest = self._rest[self._sock.send(self._rest) :] or memoryview(self._data)
                sent = True
        return sent


def test_more_clients_than_descriptors_get_503_and_are_closed(tmp_path: Path) -> None:
    """Existing clients are served throughout; afterwards all clients are served again."""
    with served(tmp_path) as service, ExitStack() as stack:
        good = stack.enter_context(connected(service, None))
        assert status(good) == b"200"
        idle = [stack.enter_context(connected(service, None)) for _ in range(SILENT)]
        for sock in idle[MAX_CONNECTIONS - 1 :]:
            assert sock.recv(12) == b"HTTP/1.1 503"
            assert status(good) == b"200"
        for sock in idle:
            sock.close()
        eventually(lambda: status(stack.enter_context(connected(service, None))) == b"200")
        assert status(good) == b"200"
        logged = f"server.max_connections reached ({MAX_CONNECTIONS}): new connections get 503"
        eventually(lambda: service.read_log().count(logged) == 1)


def test_client_that_never_reads_is_closed_with_bounded_unsent_data(tmp_path: Path) -> None:
    """By itself the kernel would hold megabytes of responses, each of which was work."""
    with served(tmp_path, "idle_timeout: 1s", "info") as service:
        address = "127.0.0.1", service.port
        with socket.create_connection(address, 10) as sock, suppress(ConnectionError):
            while True:
                sock.sendall(ask_for("alice") * 100)
        with connected(service, None) as sock:
            assert status(sock) == b"200"
    answers = service.read_log().count('"event":"request"')
    assert 100 < answers < MOST_OWED // LENGTH_OF_A_RESPONSE

"""A real process in trouble: slow clients, too many, stops; good clients go on.

``WIRE_HARD=1`` makes the crowds as large, and the stops as many, as they are meant to be.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import pytest

from support.http.in_process import ask_for
from support.processes.process import ServiceProcess, eventually, running
from support.processes.process_usage import descriptors
from support.processes.service import KEY

pytestmark = pytest.mark.slow

HARD = "WIRE_HARD" in os.environ
STOPS = 20 if HARD else 3
IDLE = 1_000
CLIENTS = 16
CONFIG = """\
profile_sites: [https://profiles.example]
server: {{port: 0, idle_timeout: {idle_timeout}, body_timeout: 1s}}
auth: {{keys: [{{id: caller, token: {key}}}]}}
logging: {{level: info, format: json}}
backends: [{{name: users, kind: yaml, path: users.yaml}}]
"""
USERS = 'users: [{nickname: "@alice", card_number: "4000123412341234", plan: Free}]\n'
USUAL = ("request", "started", "stopped", "event loop was blocked")
"""Events that are logged, the last one on a busy machine."""
SOON = 30.0
LENGTH_OF_AN_ANSWER = 350
MOST_OWED = 1024 * 1024
"""Bytes of answers on their way: ours, the kernel's on this side, and the kernel's on that."""


@contextmanager
def served(
    folder: Path, most_descriptors: int = 8192, idle_timeout: str = "1s"
) -> Iterator[ServiceProcess]:
    (folder / "users.yaml").write_text(USERS)
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(key=KEY, idle_timeout=idle_timeout))
    with ExitStack() as stack:
        with descriptors(most_descriptors):
            service = stack.enter_context(running(config))
        yield service
        assert "Traceback" not in service.read_log()


def connect(service: ServiceProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), timeout=SOON)


def answer(sock: socket.socket) -> tuple[int, HTTPResponse, bytes]:
    """The next answer of a connection with one request under way."""
    response = HTTPResponse(sock)
    response.begin()
    return response.status, response, response.read()


def ask(sock: socket.socket) -> int:
    sock.sendall(ask_for("alice"))
    return answer(sock)[0]


def is_served(service: ServiceProcess) -> bool:
    """Whether a new client is."""
    with connect(service) as sock:
        return ask(sock) == 200


def test_more_clients_than_descriptors_get_503_and_are_closed(tmp_path: Path) -> None:
    """Existing clients are served throughout; afterwards all clients are served again."""
    with (
        served(tmp_path, most_descriptors=256, idle_timeout="60s") as service,
        connect(service) as good,
    ):
        assert ask(good) == 200
        idle = [connect(service) for _ in range(IDLE)]
        statuses: Counter[bytes] = Counter()
        for sock in idle[63:]:
            statuses[sock.recv(12)] += 1
            assert ask(good) == 200
        assert statuses == {b"HTTP/1.1 503": IDLE - 63}
        for sock in idle:
            sock.close()
        eventually(lambda: is_served(service))
        assert ask(good) == 200
        eventually(lambda: "server.max_connections reached (64)" in service.read_log())
        lines = service.read_log().rpartition("\n")[0].splitlines()
        events = [json.loads(line)["event"] for line in lines]
        assert len([each for each in events if not each.startswith(USUAL)]) == 1


def test_client_that_never_reads_is_closed_with_bounded_unsent_data(tmp_path: Path) -> None:
    """By itself the kernel would hold megabytes of answers, each of which was work."""
    pipeline = ask_for("alice") * 100
    with served(tmp_path) as service:
        with connect(service) as sock, suppress(ConnectionError):
            while True:
                sock.sendall(pipeline)
        assert is_served(service)
        service.send_signal()
        assert service.wait() == 0
        answers = sum('"event":"request"' in line for line in service.read_log().splitlines())
        assert 100 < answers < MOST_OWED // LENGTH_OF_AN_ANSWER


class Kept:
    """A client who keeps the connection, and knows of each request whether it was read.

    The ``100 Continue`` says so: from then on the answer is owed.
    """

    def __init__(self, service: ServiceProcess) -> None:
        self.answered = 0
        self.closed_by_header = self.left = False
        self.error: BaseException | None = None
        self._sock = connect(service)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._sock:
                self._ask_on()
        except (OSError, AssertionError, HTTPException) as error:
            self.error = error

    def _ask_on(self) -> None:
        data = ask_for("alice", b"Expect: 100-continue")
        while not self.closed_by_header:
            self._sock.sendall(data[:-19])
            begin = self._sock.recv(25)
            if not begin:
                self.left = True  # between two requests: this one was not read
                return
            assert begin == b"HTTP/1.1 100 Continue\r\n\r\n"
            self._sock.sendall(data[-19:])
            status, response, body = answer(self._sock)
            assert (status, len(body)) == (200, 131)
            self.answered += 1
            self.closed_by_header = response.getheader("Connection") == "close"
        assert self._sock.recv(1) == b""


def test_stop_under_load_answers_every_request_that_was_read(tmp_path: Path) -> None:
    """Requests in progress get a response with ``Connection: close``, and no reset."""
    closed = 0
    for stop in range(STOPS):
        folder = tmp_path / str(stop)
        folder.mkdir()
        with served(folder) as service:
            clients = [Kept(service) for _ in range(CLIENTS)]
            eventually(lambda: min(each.answered for each in clients) > 10)  # noqa: B023
            service.send_signal()
            for each in clients:
                each.thread.join(SOON)
            assert [each.error for each in clients if each.error] == []
            assert all(each.closed_by_header or each.left for each in clients)
            assert service.wait() == 0
            closed += sum(each.closed_by_header for each in clients)
        answers = sum('"event":"request"' in line for line in service.read_log().splitlines())
        assert answers == sum(each.answered for each in clients)
        assert "unanswered" not in service.read_log()
    assert closed

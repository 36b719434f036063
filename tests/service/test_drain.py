"""A stop lets the requests in flight finish; a real process, a real signal."""

from __future__ import annotations

import json
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.processes.ports import listens
from support.processes.process import ServiceProcess, eventually, running, write_plugin
from support.processes.service import CONFIG as SERVICE
from support.processes.service import KEY, USERS, Client, Reply, write_config

pytestmark = pytest.mark.slow

PLUGIN = """\
import asyncio

import tornado_idv


class WaitingOptions(tornado_idv.BackendOptions):
    port: int


class Waiting(tornado_idv.Backend[WaitingOptions]):
    '''Knows everybody, once the test hangs up.'''

    options_type = WaitingOptions

    async def find(self, query):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.options.port)
        await reader.read()
        writer.close()
        return tornado_idv.User(plan="Free", card_number="1", nickname=query.nickname)


@tornado_idv.hookimpl
def idv_kinds():
    return tornado_idv.Kinds({"waiting": Waiting})
"""
CONFIG = """\
profile_sites: [https://profiles.example]
server: {{port: 0, request_timeout: 20s, drain: {drain}}}
auth: {{keys: [{{id: caller, token: {key}}}]}}
backends: [{{name: waiting, kind: waiting, port: {port}, timeout: 20s}}]
logging: {{level: info, format: json}}
"""
BODY = b'{"input": "@alice"}'
HEAD = (
    b"POST /api/v1/identify/url HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
    b"Authorization: Bearer %s\r\n" % (len(BODY), KEY.encode())
)
RESET = struct.pack("ii", 1, 0)
"""The socket option for closing with a reset."""
REQUEST = HEAD + b"\r\n" + BODY


@pytest.fixture
def asked() -> Iterator[socket.socket]:
    """Where the backend calls when it is asked, and waits until its call is ended."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


@contextmanager
def waiting_service(
    folder: Path, asked: socket.socket, drain: str = "{}"
) -> Iterator[ServiceProcess]:
    """Serves a backend from elsewhere, found by its entry point."""
    plugins = write_plugin(folder / "plugins", "waiting", PLUGIN)
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(drain=drain, key=KEY, port=asked.getsockname()[1]))
    with running(config, path=plugins) as service:
        yield service


@contextmanager
def caller(service: ServiceProcess) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as sock:
        yield sock


def read_all(sock: socket.socket) -> bytes:
    """Read to the end, and close the connection, for which the service waits a second."""
    with sock:
        return sock.makefile("rb").read()


@pytest.mark.parametrize("sent", [BODY[:5], BODY], ids=["half the body", "the body"])
def test_drain_does_not_wait_for_a_disconnected_client(
    tmp_path: Path, asked: socket.socket, sent: bytes
) -> None:
    with waiting_service(tmp_path, asked, "{timeout: 10s}") as service:
        with caller(service) as sock:
            sock.sendall(HEAD + b"Expect: 100-continue\r\n\r\n")
            assert sock.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(sent)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            call = asked.accept() if sent == BODY else None
        service.stop()
        if call:
            call[0].close()
    assert "unanswered" not in service.read_log()
    assert "Traceback" not in service.read_log()


def test_drain_answers_a_half_closed_connection(tmp_path: Path, asked: socket.socket) -> None:
    with waiting_service(tmp_path, asked) as service, caller(service) as sock:
        sock.sendall(REQUEST)
        sock.shutdown(socket.SHUT_WR)
        call, _ = asked.accept()
        service.send_signal()
        eventually(lambda: not listens(service.port))
        call.close()
        answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Connection: close\r\n" in answer
        assert service.wait() == 0


def test_a_request_without_end_is_given_up(tmp_path: Path, asked: socket.socket) -> None:
    """After ``drain.timeout`` the process exits all the same, and says so."""
    drain = "{timeout: 50ms}"
    with waiting_service(tmp_path, asked, drain) as service, caller(service) as sock:
        sock.sendall(REQUEST)
        call, _ = asked.accept()
        service.stop()
        call.close()
    assert "requests unanswered after the drain timeout" in service.read_log()
    assert "Traceback" not in service.read_log()


@pytest.mark.parametrize("server", ["", "fast_path: false", "workers: 2"])
def test_load_balancer_learns_of_a_stop_while_drain_is_delayed(tmp_path: Path, server: str) -> None:
    """The health check fails, and each response closes its connection, also for known clients."""
    settings = ["port: 0", "health_path: /healthz", "drain: {delay: 20s}", "idle_timeout: 20s"]
    text = SERVICE.replace("port: 0, body_timeout: 500ms, idle_timeout: 1s", ", ".join(settings))
    text = text.replace("{port", f"{{{server + ', ' if server else ''}port") + USERS
    health = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with running(write_config(tmp_path, text)) as service, ExitStack() as opened:
        client = Client(service.port)
        kept = [opened.enter_context(client.connection()) for _ in range(4)]
        for each in kept:
            for _ in range(3):
                each.send(REQUEST)
                assert is_kept(each.read_reply(), 200)
        assert is_kept(*client.raw(health), 200)
        service.send_signal()
        eventually(lambda: "stopping" in service.read_log())
        # Of each worker, to which the kernel distributes the connections.
        eventually(lambda: all(client.raw(health)[0].status == 503 for _ in range(16)))
        late = [opened.enter_context(client.connection()) for _ in range(4)]
        for each in kept + late:
            each.send(REQUEST)
            assert is_closed(each.read_reply(), 200)
            assert each.read_reply() is None
        (reply,) = client.until_closed(health)
        assert is_closed(reply, 503)
        assert reply.code == "overloaded"
        eventually(lambda: '"reason":"stopping"' in service.read_log())
        service.send_signal()
        assert service.wait() == 128 + signal.SIGTERM


def is_kept(reply: Reply | None, status: int) -> bool:
    return reply is not None and reply.status == status and "connection" not in reply.headers


def is_closed(reply: Reply | None, status: int) -> bool:
    return (
        reply is not None and reply.status == status and reply.headers.get("connection") == "close"
    )


def test_request_in_flight_closes_its_connection_while_the_drain_is_delayed(
    tmp_path: Path, asked: socket.socket
) -> None:
    with (
        waiting_service(tmp_path, asked, "{delay: 20s}") as service,
        Client(service.port).connection() as client,
    ):
        for name in (b"alice", b"carol"):  # the second head is learned
            client.send(REQUEST.replace(b"alice", name))
            asked.accept()[0].close()
            assert is_kept(client.read_reply(), 200)
        client.send(REQUEST.replace(b"alice", b"bobby"))
        call, _ = asked.accept()
        service.send_signal()
        other = REQUEST.replace(KEY.encode(), b"unknown")
        eventually(lambda: is_closed(*Client(service.port).raw(other), 401))
        call.close()
        assert is_closed(client.read_reply(), 200)
        with caller(service) as sock:  # which has the time of the drain, but for a second signal
            sock.sendall(REQUEST.replace(b"alice", b"david"))
            call, _ = asked.accept()
            service.send_signal(signal.SIGINT)
            assert service.wait() == 128 + signal.SIGINT
            call.close()
    assert "requests in flight are aborted" in service.read_log()
    assert "Traceback" not in service.read_log()


def test_hangup_reloads_the_configuration(tmp_path: Path, asked: socket.socket) -> None:
    """While a request is in flight, which is answered; and a stop then is as any other."""
    with waiting_service(tmp_path, asked) as service, caller(service) as sock:
        sock.sendall(REQUEST)
        call, _ = asked.accept()
        path = tmp_path / "config.yaml"
        path.write_text(path.read_text().replace("profiles.example", "other.example"))
        service.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in service.read_log())
        service.send_signal()
        eventually(lambda: not listens(service.port))
        assert service.process.poll() is None
        call.close()
        answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"https://profiles.example/m/alice" in answer
        assert service.wait() == 0
    assert "unanswered" not in service.read_log()
    assert "Traceback" not in service.read_log()
    events = [json.loads(line) for line in service.read_log().splitlines()]
    (line,) = [each for each in events if each["event"] == "reloaded"]
    assert (line["result"], line["trigger"], line["needs_restart"]) == ("ok", "signal", [])


def test_idle_service_needs_no_time_to_drain(tmp_path: Path, asked: socket.socket) -> None:
    with waiting_service(tmp_path, asked, "{timeout: 0s}") as service:
        service.stop()
    assert "unanswered" not in service.read_log()
    assert '"drained":true' in service.read_log()

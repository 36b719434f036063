"""Sockets that a service manager holds and passes, as systemd does with a ``.socket`` unit."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from support.http.certificate import trusting_context
from support.processes.ports import free_port, listens
from support.processes.process import COMMAND, TIMEOUT, children, eventually
from support.processes.proxies import find_tool
from support.processes.service import (
    KEY,
    Client,
    Connection,
    lookup_request,
    open_socket,
    write_config,
)
from support.processes.socket_activation import (
    activated,
    drain_worker,
    held_sockets,
    serving_activated,
)
from tornado_idv.service.sockets import passed_sockets

pytestmark = pytest.mark.slow

CONFIG = """\
profile_sites: [https://profiles.example]
server: {{port: {port}, workers: {workers}, drain: {{delay: {delay}}}}}
auth: {{keys: [{{id: caller, token: {key}}}]}}
backends: [{{name: users, kind: yaml, path: users.yaml}}]
logging: {{level: info, format: json}}
"""
ALICE = {
    "status": "ok",
    "plan": "Free",
    "card_number": "4000123412341234",
    "nickname": "@alice",
    "profile_url": "https://profiles.example/m/alice",
}
RESTARTS = 2
_PAUSE = 0.02
"""Seconds between the requests of a client, so that most of the processor is for the service."""
WORKERS = pytest.mark.parametrize("workers", [1, 2])
Sockets = tuple[socket.socket, socket.socket]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Sockets]:
    """A TCP and a Unix socket that outlive the service."""
    with held_sockets(tmp_path) as sockets:
        yield sockets


def write(folder: Path, workers: int = 1, delay: str = "0s") -> Path:
    """Write a configuration; its own port is not used."""
    port = free_port()
    return write_config(folder, CONFIG.format(port=port, workers=workers, delay=delay, key=KEY))


def places(held: Sockets) -> tuple[int, Path]:
    """Return where clients reach these sockets."""
    return held[0].getsockname()[1], Path(held[1].getsockname())


def events(config: Path) -> list[dict[str, object]]:
    text, _, _ = config.with_suffix(".log").read_text().rpartition("\n")
    lines = text.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


@WORKERS
def test_passed_sockets_replace_the_configured_address(
    held: Sockets, tmp_path: Path, workers: int
) -> None:
    config = write(tmp_path, workers)
    port, path = places(held)
    with serving_activated(held, config) as process:
        for place in (port, path):
            for _ in range(3):
                reply = Client(place).by_input("@alice")
                assert (reply.status, json.loads(reply.body)) == (200, ALICE)
        text = config.with_suffix(".log").read_text()
        assert f"Listening on http://127.0.0.1:{port}\n" in text
        assert f"Listening on unix:{path}\n" in text
        (started,) = [each for each in events(config) if each["event"] == "started"]
        assert started["listen"] == [f"127.0.0.1:{port}", f"unix:{path}"]
        assert not listens(int(config.read_text().split("port: ")[1].split(",")[0]))
        process.stop(TIMEOUT)
    # They are as they were: the service has closed its copies, and removed no file.
    assert held[1].getsockname() == str(path)
    assert path.is_socket()
    for place in (port, path):
        open_socket(place).close()


@pytest.mark.parametrize(("workers", "tls"), [(1, False), (2, False), (1, True)])
def test_file_of_a_passed_socket_outlives_each_service(
    held: Sockets, tmp_path: Path, workers: int, *, tls: bool
) -> None:
    config = write(tmp_path, workers)
    context = use_tls(config) if tls else None
    for _ in range(2):
        with serving_activated(held, config) as process:
            if workers > 1:
                drain_worker(process.pid, config)
            assert Client(places(held)[1], context).by_input("@alice").status == 200
            process.stop(TIMEOUT)


def use_tls(config: Path) -> ssl.SSLContext:
    """Have the service use TLS; return the context of its clients."""
    files = "tls: {cert_file: tls.pem, key_file: tls.pem},"
    config.write_text(config.read_text().replace("server: {", f"server: {{{files} "))
    return trusting_context(config.with_name("tls.pem"))


def test_lost_file_of_a_passed_socket_is_logged_also_by_the_next_process(
    held: Sockets, tmp_path: Path
) -> None:
    config = write(tmp_path)
    with serving_activated(held, config):
        assert not any("unix sockets" in str(each["event"]) for each in events(config))
        places(held)[1].unlink()
        eventually(lambda: lost(config) == 1)
    with serving_activated(held, config):
        text = config.with_suffix(".log").read_text()
        assert lost(config) == 2
        assert text.rindex("unix sockets") < text.rindex("Listening on")


def lost(config: Path) -> int:
    """How often the log says that a file is lost."""
    return sum("held.sock was" in str(each["event"]) for each in events(config))


def test_abstract_socket_is_served_by_its_name(tmp_path: Path) -> None:
    """It has no file that could be lost."""
    config = write(tmp_path)
    name = f"tornado-idv-{tmp_path.name}-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen(100)
        with serving_activated([abstract], config):
            assert Client(Path(f"\0{name}")).by_input("@alice").status == 200
            assert f"Listening on unix:@{name}\n" in config.with_suffix(".log").read_text()
            (started,) = [each for each in events(config) if each["event"] == "started"]
            assert started["listen"] == [f"unix:@{name}"]
            assert not any("unix sockets" in str(each["event"]) for each in events(config))


@pytest.mark.parametrize(
    ("pid", "count"),
    [("1", "0"), ("1", "2"), ("", "2"), (str(os.getpid()), "0"), (str(os.getpid()), "many")],
    ids=["another, none", "another", "no process", "none", "no number"],
)
def test_without_sockets_for_this_process_none_is_used_or_passed_on(
    monkeypatch: pytest.MonkeyPatch, pid: str, count: str
) -> None:
    """Then it binds its own; programs that it starts are not passed the sockets."""
    for name, value in {"PID": pid, "FDS": count, "FDNAMES": "a:b"}.items():
        monkeypatch.setenv(f"LISTEN_{name}", value)
    assert passed_sockets() == []
    assert not any(name.startswith("LISTEN_") for name in os.environ)


@WORKERS
def test_plain_http_on_network_is_warned_of_before_addresses(tmp_path: Path, workers: int) -> None:
    """By the sockets that are served, whose addresses the configuration does not have.

    All other warnings of the start come before them, too: also those of a worker.
    """
    config = write(tmp_path, workers)
    config.write_text(f"{config.read_text()}cache: {{snapshot: answers.snapshot}}\n")
    (tmp_path / "answers.snapshot").mkdir()
    with (
        socket.create_server(("0.0.0.0", 0)) as everywhere,
        serving_activated([everywhere], config),
    ):
        text = config.with_suffix(".log").read_text()
        port = everywhere.getsockname()[1]
        before, _, after = text.partition(f"Listening on http://127.0.0.1:{port}\n")
        assert before.count("plain HTTP on 0.0.0.0: anyone") == 1
        assert before.count("is ignored") == workers
        assert after.startswith("Backends, in order: ")


@WORKERS
def test_only_the_service_has_the_sockets(held: Sockets, tmp_path: Path, workers: int) -> None:
    """Programs that it starts would otherwise hold them, or serve on them."""
    config = write(tmp_path, workers)
    with serving_activated(held, config) as process:
        for pid in (process.pid, *children(process.pid)):
            for each in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):  # it is closed meanwhile
                    if int(each.name) > 2 and str(each.readlink()).startswith("socket:"):
                        info = Path(f"/proc/{pid}/fdinfo/{each.name}").read_text()
                        flags = int(info.split("flags:")[1].split()[0], 8)
                        assert flags & os.O_CLOEXEC, each


@WORKERS
def test_sockets_that_a_wrapper_was_passed_are_named_if_their_address_is_taken(
    held: Sockets, tmp_path: Path, workers: int
) -> None:
    """A wrapper that does not replace itself by the service, as `sh -c` or `uv run`."""
    config = write(tmp_path, workers)
    port, log = held[0].getsockname()[1], tmp_path / "log"
    arguments = ("serve", "--config", str(config), "--port", str(port))
    with activated(held, *arguments, log=log, pid="4711") as process:
        assert process.wait(TIMEOUT) == 3
    assert log.read_text() == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; "
        "sockets were passed to process 4711; run tornado-idv with exec in its script\n"
    )


def datagram() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


def not_listening() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


def packets() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(f"\0{os.getpid()}-packets")
    sock.listen()
    return sock


@WORKERS
@pytest.mark.parametrize("make", [datagram, not_listening, packets])
def test_socket_of_another_kind_is_an_error(
    held: Sockets, tmp_path: Path, make: type[socket.socket], workers: int
) -> None:
    config = write(tmp_path, workers)
    log = tmp_path / "log"
    with make() as wrong:
        arguments = ("serve", "--config", str(config))
        with activated([held[0], wrong], *arguments, log=log) as process:
            assert process.wait(TIMEOUT) == 3
    assert log.read_text() == (
        "the service manager passed file descriptor 4 (LISTEN_FDS), which is no socket that "
        "listens for connections: use ListenStream= and Accept=no\n"
    )


def test_systemd_socket_activate_starts_the_service(tmp_path: Path) -> None:
    """systemd's own program, which starts it at the first connection."""
    config, port = write(tmp_path), free_port()
    with (tmp_path / "log").open("w") as log:
        tool = find_tool("systemd-socket-activate")
        arguments = ("serve", "--config", str(config))
        process = subprocess.Popen(
            [tool, f"--listen=127.0.0.1:{port}", *COMMAND, *arguments], stdout=log, stderr=log
        )
    try:
        eventually(lambda: listens(port))
        assert Client(port).by_input("@alice").status == 200
        process.terminate()
        assert process.wait(TIMEOUT) == 0
    finally:
        process.kill()
        process.wait(TIMEOUT)


class Load:
    """Clients that look a user up until they are stopped, and what they have seen."""

    def __init__(self, *where: int | Path, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.seen: Counter[str] = Counter()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(requests, each))
            for each in where
            for requests in (1, 1_000_000)
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        for each in self._threads:
            each.start()
        try:
            yield
        finally:
            self._stop.set()
            for each in self._threads:
                each.join(TIMEOUT)

    def wait_for(self, count: int) -> None:
        """Wait for some more right responses."""
        enough = self.seen["right"] + count
        eventually(lambda: self.seen["right"] > enough)

    def _run(self, requests: int, where: int | Path) -> None:
        while not self._stop.is_set():
            try:
                with Client(where, self._tls).connection() as connection:
                    self._use(connection, requests)
            except OSError as error:
                self.seen[type(error).__name__] += 1
            self._stop.wait(_PAUSE)

    def _use(self, connection: Connection, requests: int) -> None:
        """Send so many requests on one connection, unless it is closed before."""
        for number in range(requests):
            connection.send(lookup_request("@alice"))
            reply = connection.read_reply()
            if reply is None:
                self.seen["no response on a kept connection" if number else "no response"] += 1
                return
            self.seen["right" if json.loads(reply.body) == ALICE else "wrong"] += 1
            if reply.headers.get("connection") == "close":
                self.seen["closed after a response"] += requests > 1
                return
            if self._stop.wait(_PAUSE):
                return


@pytest.mark.parametrize(
    ("workers", "delay", "tls"), [(2, "1s", False), (2, "0s", False), (1, "1s", True)]
)
def test_a_restart_under_load_loses_no_connection(
    held: Sockets, tmp_path: Path, workers: int, delay: str, *, tls: bool
) -> None:
    """Clients that connect in between wait; the others close after a response that says so.

    Without a delay some of these are closed while they are idle, which is no reset.
    """
    config = write(tmp_path, workers, delay)
    context = use_tls(config) if tls else None
    load = Load(*places(held), tls=context)
    with ExitStack() as stack:
        process = stack.enter_context(serving_activated(held, config))
        with load.running():
            for _ in range(RESTARTS):
                load.wait_for(50)
                process.stop(TIMEOUT)
                process = stack.enter_context(serving_activated(held, config))
            load.wait_for(50)
    if delay == "0s":
        load.seen["closed after a response"] += load.seen.pop("no response on a kept connection", 0)
    assert load.seen.keys() == {"right", "closed after a response"}
    assert load.seen["closed after a response"] >= RESTARTS * 2
    stopped = [each["drained"] for each in events(config) if each["event"] == "stopped"]
    assert stopped == [True] * RESTARTS
    assert {each["status"] for each in events(config) if each["event"] == "request"} == {200}


@WORKERS
def test_connections_of_the_gap_are_served_by_the_next_process(
    held: Sockets, tmp_path: Path, workers: int
) -> None:
    """Also more of them than a service by itself has waiting: they have sent their request."""
    config = write(tmp_path, workers)
    with serving_activated(held, config) as process:
        process.stop(TIMEOUT)
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(Client(place).connection())
            for place in places(held)
            for _ in range(40)
        ]
        for each in waiting:
            each.send(lookup_request("@alice"))
        stack.enter_context(serving_activated(held, config))
        replies = [each.read_reply() for each in waiting]
        assert {reply.status if reply else None for reply in replies} == {200}

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
from concurrent.futures import ThreadPoolExecutor
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
    status_of,
    write_config,
)
from support.processes.socket_activation import (
    drain_worker,
    held_sockets,
    serving_activated,
)
from tornado_idv.config.address import Address
from tornado_idv.config.settings import ServerSettings
from tornado_idv.errors import StartError
from tornado_idv.service.sockets import _passed, passed_sockets, public_sockets

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


def events(config: Path) -> list[dict[str, object]]:
    text, _, _ = config.with_suffix(".log").read_text().rpartition("\n")
    lines = text.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def check_sockets(pid: int) -> None:
    """Programs that a process starts would otherwise hold its sockets, or serve on them."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it is closed meanwhile
            if int(each.name) > 2 and str(each.readlink()).startswith("socket:"):
                info = Path(f"/proc/{pid}/fdinfo/{each.name}").read_text()
                flags = int(info.split("flags:")[1].split()[0], 8)
                assert flags & os.O_CLOEXEC, each


@WORKERS
def test_passed_sockets_replace_the_configured_address_and_outlive_each_service(
    held: Sockets, tmp_path: Path, workers: int
) -> None:
    """Clients that connect between two services wait, also more than one has waiting by itself."""
    config = write(tmp_path, workers)
    port, path = held[0].getsockname()[1], Path(held[1].getsockname())
    name = f"tornado-idv-{tmp_path.name}-{os.getpid()}"  # has no file that could be lost
    places = {port: f"127.0.0.1:{port}", path: f"unix:{path}", Path(f"\0{name}"): f"unix:@{name}"}
    with ExitStack() as stack:
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{name}")
        abstract.listen(100)
        with serving_activated([*held, abstract], config) as process:
            for place in places:
                reply = Client(place).by_input("@alice")
                assert (reply.status, json.loads(reply.body)) == (200, ALICE)
            announced = config.with_suffix(".log").read_text()
            for address in places.values():
                shown = address if address.startswith("unix:") else f"http://{address}"
                assert f"Listening on {shown}\n" in announced
            (started,) = [each for each in events(config) if each["event"] == "started"]
            assert started["listen"] == list(places.values())
            assert not listens(int(config.read_text().split("port: ")[1].split(",")[0]))
            for pid in (process.pid, *children(process.pid)):
                check_sockets(pid)
            if workers > 1:
                drain_worker(process.pid, config)
                assert Client(path).by_input("@alice").status == 200
            process.stop(TIMEOUT)
        assert not any("unix sockets" in str(each["event"]) for each in events(config))
        waiting = [
            stack.enter_context(Client(place).connection()) for place in places for _ in range(40)
        ]
        for each in waiting:
            each.send(lookup_request("@alice"))
        stack.enter_context(serving_activated([*held, abstract], config))
        assert {status_of(each.read_reply()) for each in waiting} == {200}


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


def test_sockets_that_a_wrapper_was_passed_are_named_if_their_address_is_taken(
    held: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapper that does not replace itself by the service, as `sh -c` or `uv run`."""
    for name, value in {"PID": "4711", "FDS": "2"}.items():
        monkeypatch.setenv(f"LISTEN_{name}", value)
    address = Address.of(held[1])
    reason = (
        f"cannot listen on {address}: another process listens there; "
        "sockets were passed to process 4711; run tornado-idv with exec in its script"
    )
    with pytest.raises(StartError, match=reason), public_sockets(ServerSettings(), [address]):
        pass


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


# The process ends, so it does not close the socket.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("make", [datagram, not_listening, packets])
def test_socket_of_another_kind_is_an_error(make: type[socket.socket]) -> None:
    with make() as wrong:
        descriptor = os.dup(wrong.fileno())
        reason = rf"passed file descriptor {descriptor} \(LISTEN_FDS\), which is no socket that"
        with pytest.raises(StartError, match=reason):
            _passed(descriptor)


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


@contextmanager
def loaded(*places: int | Path, tls: ssl.SSLContext | None) -> Iterator[Counter[str]]:
    """Look a user up, on connections for one request and for many; yield what clients see."""
    seen: Counter[str] = Counter()
    stop = threading.Event()

    def use(connection: Connection, requests: int) -> None:
        for _ in range(requests):
            connection.send(lookup_request("@alice"))
            reply = connection.read_reply()
            if reply is None:
                seen["no response"] += 1
                return
            seen["right" if json.loads(reply.body) == ALICE else "wrong"] += 1
            if reply.headers.get("connection") == "close":
                seen["closed after a response"] += requests > 1
                return
            if stop.wait(_PAUSE):
                return

    def repeat(place: int | Path, requests: int) -> None:
        while not stop.wait(_PAUSE):
            try:
                with Client(place, tls).connection() as connection:
                    use(connection, requests)
            except OSError as error:
                seen[type(error).__name__] += 1

    with ThreadPoolExecutor() as threads:
        clients = [threads.submit(repeat, each, n) for each in places for n in (1, 1_000_000)]
        try:
            yield seen
        finally:
            stop.set()
    for each in clients:
        each.result()


def wait_for(seen: Counter[str], count: int) -> None:
    """Wait for some more right responses."""
    enough = seen["right"] + count
    eventually(lambda: seen["right"] > enough)


@pytest.mark.parametrize(("workers", "tls"), [(2, False), (1, True)])
def test_a_restart_under_load_loses_no_connection(
    held: Sockets, tmp_path: Path, workers: int, *, tls: bool
) -> None:
    """Clients that connect in between wait; the others close after a response that says so."""
    config = write(tmp_path, workers, delay="1s")
    context = None
    if tls:
        files = "tls: {cert_file: tls.pem, key_file: tls.pem},"
        config.write_text(config.read_text().replace("server: {", f"server: {{{files} "))
        context = trusting_context(tmp_path / "tls.pem")
    places = held[0].getsockname()[1], Path(held[1].getsockname())
    with ExitStack() as stack:
        process = stack.enter_context(serving_activated(held, config))
        with loaded(*places, tls=context) as seen:
            for _ in range(RESTARTS):
                wait_for(seen, 50)
                process.stop(TIMEOUT)
                process = stack.enter_context(serving_activated(held, config))
            wait_for(seen, 50)
    assert seen.keys() == {"right", "closed after a response"}
    assert seen["closed after a response"] >= RESTARTS * 2
    stopped = [each["drained"] for each in events(config) if each["event"] == "stopped"]
    assert stopped == [True] * RESTARTS
    assert {each["status"] for each in events(config) if each["event"] == "request"} == {200}

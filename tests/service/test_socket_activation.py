"""Sockets that a service manager holds and passes, as systemd does with a ``.socket`` unit."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from support.http.load import loaded
from support.processes.ports import free_port, listens
from support.processes.process import COMMAND, TIMEOUT, children, eventually
from support.processes.proxies import find_tool
from support.processes.service import KEY, Client, lookup_request, status_of, write_config
from support.processes.socket_activation import drain_worker, held_sockets, serving_activated
from tornado_idv.config.address import Address
from tornado_idv.config.settings import ServerSettings
from tornado_idv.errors import StartError
from tornado_idv.service.sockets import _passed, passed_sockets, public_sockets

pytestmark = pytest.mark.slow

CONFIG = """\
profile_sites: [https://profiles.example]
server: {{port: {port}, workers: {workers}}}
auth: {{keys: [{{id: caller, token: {key}}}]}}
backends: [{{name: users, kind: yaml, path: users.yaml}}]
logging: {{level: info, format: json}}
"""
RESTARTS = 2
WORKERS = pytest.mark.parametrize("workers", [1, 2])
Sockets = tuple[socket.socket, socket.socket]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Sockets]:
    """A TCP and a Unix socket that outlive the service."""
    with held_sockets(tmp_path) as sockets:
        yield sockets


def write(folder: Path, workers: int = 1) -> Path:
    """Write a configuration; its own port is not used."""
    return write_config(folder, CONFIG.format(port=free_port(), workers=workers, key=KEY))


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
                assert Client(place).by_input("@alice").status == 200
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


# The process ends, so it does not close the socket.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("family", "kind", "is_listening"),
    [
        (socket.AF_INET, socket.SOCK_DGRAM, False),
        (socket.AF_INET, socket.SOCK_STREAM, False),
        (socket.AF_UNIX, socket.SOCK_SEQPACKET, True),
    ],
)
def test_socket_of_another_kind_is_an_error(
    family: socket.AddressFamily, kind: socket.SocketKind, *, is_listening: bool
) -> None:
    with socket.socket(family, kind) as wrong:
        wrong.bind(("127.0.0.1", 0) if family == socket.AF_INET else f"\0{os.getpid()}-packets")
        if is_listening:
            wrong.listen()
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


def test_a_restart_under_load_loses_no_connection(held: Sockets, tmp_path: Path) -> None:
    """Clients that connect in between wait."""
    config = write(tmp_path, workers=2)
    with ExitStack() as stack:
        process = stack.enter_context(serving_activated(held, config))
        port = held[0].getsockname()[1]
        with loaded(port, lookup_request("@alice")) as load:
            for _ in range(RESTARTS):
                load.wait_for(50)
                process.stop(TIMEOUT)
                process = stack.enter_context(serving_activated(held, config))
            load.wait_for(50)
    assert {*load.results} == {"ok"}
    stopped = [each["drained"] for each in events(config) if each["event"] == "stopped"]
    assert stopped == [True] * RESTARTS

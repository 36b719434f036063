"""Unix sockets of the service: real processes, real clients."""

import gc
import json
import logging
import os
import re
import shlex
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from support.processes.admin import ask_admin
from support.processes.ports import require_ipv6
from support.processes.process import ServiceProcess, eventually, running
from support.processes.proxies import find_tool
from support.processes.service import (
    KEY,
    Client,
    begun_request,
    lookup_request,
    open_socket,
    status_of,
    write_config,
)
from support.processes.socket_activation import drain_worker
from tornado_idv.config.address import Address
from tornado_idv.config.settings import ServerSettings
from tornado_idv.errors import StartError
from tornado_idv.files import FileSignature
from tornado_idv.service.sockets import SocketFiles, public_sockets

pytestmark = pytest.mark.slow

CONFIG = """\
profile_sites: [https://profiles.example]
server: {{listen: [{listen}], {server}}}
auth: {{keys: [{{id: caller, token: {key}}}]}}
limits: {{failed_auth: 3/hour}}
backends: [{{name: users, kind: yaml, path: users.yaml}}]
logging: {{level: info, format: json}}
{more}
"""
BOTH = '"unix:http.sock", "127.0.0.1:0"'
WORKERS = pytest.mark.parametrize("workers", [1, 2])


def write(folder: Path, listen: str = BOTH, more: str = "", **server: object) -> Path:
    text = ", ".join(f"{name}: {value}" for name, value in server.items())
    return write_config(folder, CONFIG.format(listen=listen, server=text, key=KEY, more=more))


def clients(service: ServiceProcess) -> list[str]:
    """The addresses of clients in the access log, in order."""
    lines = map(json.loads, service.read_log().splitlines())
    return [each["client"] for each in lines if each["event"] == "request"]


def is_refused(path: Path) -> bool:
    """Return whether no process listens on a Unix socket that is there."""
    try:
        open_socket(path).close()
    except ConnectionRefusedError:
        return True
    return False


@WORKERS
def test_requests_are_served_and_drained_on_all_addresses(tmp_path: Path, workers: int) -> None:
    require_ipv6()
    listen = f'"unix:{tmp_path}/other.sock", {BOTH}, "[::1]:0"'
    path = tmp_path / "http.sock"
    config = write(tmp_path, listen, workers=workers)
    with running(config, "--ready-file", f"{path}.json") as service, ExitStack() as kept:
        assert json.loads(Path(f"{path}.json").read_text())["unix_socket"] == str(path)
        for place in (path, tmp_path / "other.sock", service.port):
            for _ in range(3):
                assert Client(place).by_input("@alice").status == 200
            connection = kept.enter_context(Client(place).connection())
            for _ in range(3):  # by the handlers, and by the fast path
                connection.send(lookup_request("@alice"))
                assert status_of(connection.read_reply()) == 200
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        lines = [line for line in service.announced if line.startswith("Listening")]
        addresses = [line.strip().partition(" on ")[2] for line in lines]
        assert [re.sub("[0-9]+$", "N", each) for each in addresses] == [
            "http://127.0.0.1:N",
            "http://[::1]:N",
            f"unix:{tmp_path}/other.sock",
            f"unix:{path}",
        ]
        eventually(lambda: "unix:" in clients(service))
        if workers > 1:
            drain_worker(service.process.pid, config)
            assert Client(path).by_input("@alice").status == 200
        with begun_request(Client(path)) as (connection, body):
            service.send_signal()
            eventually(lambda: is_refused(path))
            connection.send(body)
            assert status_of(connection.read_reply()) == 200
        assert service.wait() == 0
    assert not path.exists()
    assert not (tmp_path / "other.sock").exists()
    assert {*clients(service)} == {"unix:", "127.0.0.1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "http.sock"


def bound(*addresses: Address) -> AbstractContextManager[list[list[socket.socket]]]:
    """Bind addresses as a service of two workers does."""
    server = ServerSettings.model_construct(listen=addresses)
    return public_sockets(server, addresses, 2)


def listening(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(str(path))
    if kind == socket.SOCK_STREAM:
        sock.listen(0)
    return sock


def test_file_of_a_service_that_was_killed_is_replaced(path: Path) -> None:
    listening(path).close()
    with bound(Address(path=path)):
        open_socket(path).close()
        path.chmod(0o660)  # its owner may be changed, too
    assert not path.exists()


OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "listens": (listening, "another process listens there"),
    "has no room": (
        lambda path: (listening(path), open_socket(path)),
        "another process listens there",
    ),
    "takes datagrams": (
        lambda path: listening(path, socket.SOCK_DGRAM),
        "Protocol wrong type for socket",
    ),
    "is a file": (Path.touch, "File {} exists and is not a socket"),
    "is a dangling link": (lambda path: path.symlink_to("elsewhere"), "Address already in use"),
    "is in no folder": (lambda path: path.parent.rmdir(), "No such file or directory"),
}


# Tornado does not close a socket that it cannot bind: the collector does, with a warning.
UNBOUND = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@UNBOUND
@pytest.mark.parametrize("other", OTHERS)
def test_file_of_another_is_left_alone(tmp_path: Path, other: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    make, reason = OTHERS[other]
    path = folder / "http.sock"
    made = make(path)
    before = os.path.lexists(path) and path.lstat()[:7]  # without times: reading a link sets one
    text = f"cannot listen on unix:{path}: {reason.format(path)}; change server.listen"
    with pytest.raises(StartError, match=f"^{re.escape(text)}$"), bound(Address(path=path)):
        pass
    assert (os.path.lexists(path) and path.lstat()[:7]) == before
    for each in made if isinstance(made, tuple) else [made]:
        if isinstance(each, socket.socket):
            each.close()
    gc.collect()


@UNBOUND
def test_start_that_fails_leaves_no_file(path: Path) -> None:
    addresses = Address(path=path), Address(path=path.parent / "no" / "other.sock")
    with pytest.raises(StartError), bound(*addresses):
        pass
    assert not path.exists()
    gc.collect()


def test_file_of_a_successor_is_left_alone(path: Path) -> None:
    """A service that still drains does not remove what another one has put in its place."""
    with ExitStack() as successor:
        with bound(Address(path=path)) as ((sock,), _):
            sock.close()
            successor.enter_context(bound(Address(path=path)))
        open_socket(path).close()
    with bound(Address(path=path)), listening(path.with_name("other.sock")):
        path.with_name("other.sock").rename(path)
    assert path.is_socket()


@WORKERS
def test_lost_file_of_a_socket_degrades_the_service(tmp_path: Path, workers: int) -> None:
    config = write(tmp_path, workers=workers, more="admin: {port: 0}")
    with running(config) as service:
        assert ask_admin(service, "/health/ready?verbose").json["unix_sockets"]["error"] is None
        (tmp_path / "http.sock").unlink()
        eventually(lambda: ask_admin(service, "/health/ready").json["degraded"] != [])
        record = ask_admin(service, "/health/ready?verbose").json
        assert (record["status"], record["degraded"]) == ("degraded", ["unix sockets"])
        assert record["unix_sockets"]["error"] == (
            f"unix:{tmp_path}/http.sock was removed or replaced: no client can connect; restart "
            "the service, or the .socket unit"
        )


def test_file_of_a_socket_is_lost_until_it_is_back(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that only the proxy may enter, a socket that systemd passes is not lost."""
    caplog.set_level(logging.INFO)
    aside = path.with_name("aside.sock")
    with listening(path):
        files = SocketFiles([Address(path=path), Address(path=Path("@abstract"))])

        def is_lost() -> bool:
            files.check()
            return files.report is not None and files.report.error is not None

        report = files.report
        assert report is not None
        assert not is_lost()
        began = report.since
        path.rename(aside)
        assert is_lost()
        assert began < (lost_at := report.since)
        aside.rename(path)
        assert not is_lost()
        assert report.since > lost_at
        path.rename(aside)
        with listening(path):
            assert is_lost()
            files = SocketFiles([Address(path=path.with_name("gone.sock"))])
            assert is_lost(), "from the beginning"
            path.with_name("gone.sock").touch()
            assert not is_lost()
    levels = [each.levelname for each in caplog.records]
    assert levels == ["ERROR", "INFO", "ERROR", "ERROR", "INFO"]
    monkeypatch.setattr(FileSignature, "of", raise_permission_error)
    assert not is_lost()


def raise_permission_error(_: Path) -> FileSignature:
    raise PermissionError


@pytest.mark.parametrize(
    ("trusted", "statuses", "seen"),
    [
        ("unix:", [401] * 4, ["203.0.113.1", "203.0.113.2"] * 2),
        ("127.0.0.1", [401] * 3 + [429], ["unix:"] * 4),
    ],
)
def test_clients_behind_a_trusted_proxy_alone_have_their_own_limits(
    path: Path, tmp_path: Path, trusted: str, statuses: list[int], seen: list[str]
) -> None:
    """Otherwise the header that any client can write is not used."""
    fields = {"Host": "x", "Authorization": "Bearer wrong-key-of-a-client"}
    with running(write(tmp_path, trusted_proxies=f'["{trusted}"]')) as service:
        for number, status in zip((1, 2, 1, 2), statuses, strict=True):
            fields["X-Forwarded-For"] = f"203.0.113.{number}"
            reply = Client(path).send("POST", "/api/v1/identify/url", fields, b"{}")
            assert reply.status == status
        eventually(lambda: clients(service) == seen)


def test_command_of_a_demo_works(tmp_path: Path) -> None:
    """With Unix sockets alone, whose URL has any host, and a space in the path."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    config = write(folder, '"unix:http.sock"', more="demo: true", base_path="/x", docs="true")
    curl, ready = find_tool("curl"), tmp_path / "ready.json"
    with running(config, "--ready-file", str(ready)) as service:
        line = service.read_up_to("curl ")
        assert service.announced[0] == f"Listening on unix:{folder}/http.sock\n"
        assert not any(each.startswith("API documentation") for each in service.announced)
        done = subprocess.run(
            [curl, "-sS", *shlex.split(line)[1:]], capture_output=True, check=True, timeout=20
        )
        assert json.loads(done.stdout)["nickname"] == "@alice"
        record = json.loads(ready.read_text())
    assert record["unix_socket"] == f"{folder}/http.sock"
    assert (record["url"], record["key"]) == ("http://localhost/x", KEY)

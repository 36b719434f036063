"""Unix sockets of the service: real processes, real clients."""

from __future__ import annotations

import json
import re
import shlex
import socket
import stat
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.processes.admin import ask_admin
from support.processes.ports import require_ipv6
from support.processes.process import ServiceProcess, command, eventually, running
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
from tornado_idv.files import FileSignature
from tornado_idv.service.sockets import SocketFiles

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
def test_requests_are_served_on_all_addresses(tmp_path: Path, workers: int) -> None:
    require_ipv6()
    listen = f'"unix:{tmp_path}/other.sock", {BOTH}, "[::1]:0"'
    path = tmp_path / "http.sock"
    with running(write(tmp_path, listen, workers=workers)) as service, ExitStack() as kept:
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
        service.stop()
    assert not path.exists()
    assert not (tmp_path / "other.sock").exists()
    assert {*clients(service)} == {"unix:", "127.0.0.1"}


@WORKERS
def test_drain_completes_a_request_of_a_unix_socket(tmp_path: Path, workers: int) -> None:
    config = write(tmp_path, workers=workers)
    path = tmp_path / "http.sock"
    with running(config) as service, begun_request(Client(path)) as (client, body):
        service.send_signal()
        eventually(lambda: is_refused(path))
        client.send(body)
        reply = client.read_reply()
        assert reply is not None
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert client.read_reply() is None
        assert service.wait() == 0


@WORKERS
def test_file_of_a_service_that_was_killed_is_replaced(tmp_path: Path, workers: int) -> None:
    config = write(tmp_path, workers=workers)
    path = tmp_path / "http.sock"
    with running(config):
        pass  # killed
    assert path.is_socket()
    eventually(lambda: is_refused(path))
    with running(config):
        assert Client(path).by_input("@alice").status == 200


@WORKERS
def test_socket_of_another_process_is_left_alone(tmp_path: Path, workers: int) -> None:
    """Also of one that has no room for a connection now, or takes no streams."""
    config = write(tmp_path, workers=workers)
    path = tmp_path / "http.sock"

    def refused() -> str:
        result = command("serve", "--config", str(config))
        assert result.returncode == 3
        start, reason = f"cannot listen on unix:{path}: ", "; change server.listen\n"
        assert result.stderr.startswith(start)
        assert result.stderr.endswith(reason)
        return result.stderr.removeprefix(start).removesuffix(reason)

    with running(config):
        assert refused() == "another process listens there"
        assert Client(path).by_input("@alice").status == 200
    path.unlink()
    with socket.socket(socket.AF_UNIX) as full, ExitStack() as stack:
        full.bind(str(path))
        full.listen(0)
        stack.enter_context(open_socket(path))
        assert refused() == "another process listens there"
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(str(path))
        assert refused() == "Protocol wrong type for socket"
    path.unlink()
    path.write_text("mine")
    assert refused() == f"File {path} exists and is not a socket"
    assert path.read_text() == "mine"
    path.unlink()
    path.symlink_to("elsewhere")
    assert refused() == "Address already in use"
    assert path.is_symlink()
    path.unlink()
    path.mkdir()
    assert refused() == f"File {path} exists and is not a socket"


def test_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    result = command("serve", "--config", str(write(tmp_path, '"unix:no/http.sock"')))
    assert result.returncode == 3
    assert result.stderr == (
        f"cannot listen on unix:{tmp_path}/no/http.sock: No such file or directory; "
        "change server.listen\n"
    )


@WORKERS
def test_start_that_fails_leaves_no_file(tmp_path: Path, workers: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listen = f'"unix:http.sock", "127.0.0.1:{port}"'
        result = command("serve", "--config", str(write(tmp_path, listen, workers=workers)))
    assert result.returncode == 3
    assert result.stderr.startswith(f"cannot listen on 127.0.0.1:{port}: Address already in")
    assert result.stderr.endswith("; change server.listen\n")
    assert not (tmp_path / "http.sock").exists()


@WORKERS
def test_file_of_a_successor_is_left_alone(tmp_path: Path, workers: int) -> None:
    """A service that still drains does not remove what another one has put in its place."""
    config = write(tmp_path, workers=workers, drain="{timeout: 10s}")
    path = tmp_path / "http.sock"
    with running(config) as first, Client(path).connection() as client:
        client.send(lookup_request("@alice")[:-1])
        first.send_signal()
        eventually(lambda: "stopping" in first.read_log())
        eventually(lambda: is_refused(path))
        other = tmp_path / "second.yaml"
        other.write_text(config.read_text())
        with running(other):
            client.send(lookup_request("@alice")[-1:])
            assert client.read_reply() is not None
            assert first.wait() == 0
            assert Client(path).by_input("@alice").status == 200


@WORKERS
def test_file_that_another_has_bound_is_left_alone(tmp_path: Path, workers: int) -> None:
    path, other = tmp_path / "http.sock", tmp_path / "other.sock"
    with (
        running(write(tmp_path, workers=workers)) as service,
        socket.socket(socket.AF_UNIX) as sock,
    ):
        sock.bind(str(other))
        other.rename(path)
        service.stop()
        assert path.is_socket()


def test_socket_outlives_a_worker(tmp_path: Path) -> None:
    config, path = write(tmp_path, workers=2), tmp_path / "http.sock"
    with running(config) as service:
        drain_worker(service.process.pid, config)
        assert Client(path).by_input("@alice").status == 200
        service.stop()
    assert not path.exists()


@WORKERS
def test_lost_file_of_a_socket_degrades_the_service(tmp_path: Path, workers: int) -> None:
    path, aside = tmp_path / "http.sock", tmp_path / "aside.sock"
    config = write(tmp_path, workers=workers, more="admin: {port: 0}")
    with running(config) as service, socket.socket(socket.AF_UNIX) as other:

        def wait_until_degraded_by(*parts: str) -> None:
            eventually(lambda: ask_admin(service, "/health/ready").json["degraded"] == [*parts])

        wait_until_degraded_by()
        assert ask_admin(service, "/health/ready?verbose").json["unix_sockets"]["error"] is None
        path.rename(aside)
        wait_until_degraded_by("unix sockets")
        assert ask_admin(service, "/health/ready").status == 200
        assert ask_admin(service, "/health/ready?verbose").json["unix_sockets"]["error"] == (
            f"unix:{path} was removed or replaced: no client can connect; restart the service, "
            "or the .socket unit"
        )
        aside.rename(path)
        wait_until_degraded_by()
        path.rename(aside)
        other.bind(str(path))
        other.listen()
        wait_until_degraded_by("unix sockets")
        service.send_signal()
        other.close()
        assert service.wait() == 0
        assert path.is_socket()
    lines = map(json.loads, service.read_log().splitlines())
    said = [each["level"] for each in lines if each["event"].startswith("unix sockets: ")]
    assert said == ["error", "info", "error"]


def test_file_that_may_not_be_looked_at_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder that only the proxy may enter, of a socket that systemd passes."""

    def refuse(_: Path) -> FileSignature:
        raise PermissionError

    monkeypatch.setattr(FileSignature, "of", refuse)
    files = SocketFiles([Address(path=tmp_path / "http.sock")])
    assert files.report is not None
    assert files.report.error is None
    monkeypatch.undo()
    files.check()
    assert files.report.error is not None


def test_owner_may_be_changed_while_it_serves(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with running(write(tmp_path)) as service:
        path.chmod(0o660)
        assert Client(path).by_input("@alice").status == 200
        service.stop()
    assert not path.exists()


def failures(path: Path, addresses: list[str]) -> list[int]:
    """The statuses of requests with a wrong key, with these addresses in the header."""
    fields = {"Host": "x", "Authorization": "Bearer wrong-key-of-a-client"}
    return [
        Client(path)
        .send("POST", "/api/v1/identify/url", {**fields, "X-Forwarded-For": each}, b"{}")
        .status
        for each in addresses
    ]


def test_clients_behind_a_trusted_proxy_have_their_own_limits(tmp_path: Path) -> None:
    addresses = ["203.0.113.1"] * 4 + ["203.0.113.2"] * 4 + ["2001:db8::1"]
    with running(write(tmp_path, trusted_proxies='["unix:"]')) as service:
        statuses = failures(tmp_path / "http.sock", addresses)
        assert statuses == [401, 401, 401, 429] * 2 + [401]
        with Client(tmp_path / "http.sock").connection() as client:
            request = lookup_request("@alice").replace(
                b"Host: x", b"Host: x\r\nX-Forwarded-For: 6.6.6.6, 203.0.113.7"
            )
            for _ in range(3):  # the last by the fast path
                client.send(request)
                assert client.read_reply() is not None
        eventually(lambda: len(clients(service)) == 12)
        assert clients(service) == addresses + ["203.0.113.7"] * 3


def test_clients_without_a_trusted_proxy_share_a_limit(tmp_path: Path) -> None:
    """The header that any of them can write is not used."""
    proxies = "[127.0.0.1]"
    with running(write(tmp_path, trusted_proxies=proxies)) as service:
        path = tmp_path / "http.sock"
        assert failures(path, ["203.0.113.1", "203.0.113.2"] * 2) == [401, 401, 401, 429]
        assert Client(path).by_input("@alice").status == 200
        eventually(lambda: clients(service) == ["unix:"] * 5)


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


def test_port_of_the_command_line_takes_the_place_of_a_list(tmp_path: Path) -> None:
    with running(write(tmp_path), "--port", "0") as service:
        assert Client(service.port).by_input("@alice").status == 200
        assert not (tmp_path / "http.sock").exists()

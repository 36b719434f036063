"""A service of two workers: real processes, signals and sockets; most tests share one service."""

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser

from support.databases.key_stores import make_store
from support.http.load import loaded
from support.processes.admin import AdminReply, ask_admin
from support.processes.ports import listens
from support.processes.process import ServiceProcess, children, eventually, running
from support.processes.service import (
    KEY,
    Client,
    begun_request,
    lookup_request,
    status_of,
    write_config,
)
from tornado_idv.config.address import Address
from tornado_idv.errors import StartError
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.keys.token import issue
from tornado_idv.service.sockets import bind_each

pytestmark = pytest.mark.slow

STABLE = 1.2
"""Seconds since a worker was started, of which it has served for one."""
KILLS = int(os.environ.get("KILLS", "3"))
STEP = 0.004
"""Seconds by which each kill is later in its reload than the one before."""
LIMITED_KEY = issue("limited")
ALLOWED = 40
CONFIG = f"""\
profile_sites: [https://profiles.example]
server: {{port: 0, workers: 2, drain: {{timeout: 5s}}}}
admin: {{port: 0}}
auth:
  store: keys.db
  keys:
    - {{id: caller, token: {KEY}}}
    - {{id: limited, token: {LIMITED_KEY}, limits: {{requests: {ALLOWED}/hour}}}}
backends: [{{name: users, kind: yaml, path: users.yaml}}]
logging: {{level: info, format: json, ids: full}}
"""
REQUEST = lookup_request("@alice")


class Workers:
    """A running service, and what its admin listener says of it."""

    def __init__(self, process: ServiceProcess, folder: Path | None = None) -> None:
        self.process = process
        self.folder = folder or Path()
        self.port = process.port
        self.admin_url = process.admin_url

    def status(self) -> Any:
        time.sleep(0.02)  # it is polled, and has every process report
        return ask_admin(self, "/status.json").json

    def pids(self) -> list[int]:
        """The processes of the workers that serve."""
        workers = self.status()["workers"]
        return [each["pid"] for each in workers if each["phase"] == "ready"]

    def manager(self) -> int:
        """The process that has the admin listener."""
        workers = {each["pid"] for each in self.status()["workers"]}
        (manager,) = set(children(self.process.process.pid)) - workers
        return manager

    def is_whole(self) -> bool:
        """Whether the manager and two workers serve."""
        with suppress(OSError, http.client.HTTPException):  # the manager is being started
            return len(self.pids()) == 2
        return False

    def wait_until_stable(self) -> None:
        """Wait until all processes serve, and a worker that ends is replaced at once."""
        eventually(self.is_whole)
        eventually(lambda: all(each["uptime_s"] > STABLE for each in self.status()["workers"]))

    def has_replaced(self, pid: int) -> bool:
        """Whether two workers serve, and this is none of them."""
        pids = self.pids()
        return len(pids) == 2 and pid not in pids

    def metric(self, name: str, **labels: str) -> float:
        text = ask_admin(self, "/metrics").body.decode()
        return sum(
            sample.value
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def prepare(folder: Path, config: str = CONFIG) -> Path:
    make_store(folder / "keys.db", "stored")
    return write_config(folder, config)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("service")
    with running(prepare(folder)) as process:
        yield Workers(process, folder)


@pytest.fixture(autouse=True)
def both_workers_serve(request: pytest.FixtureRequest) -> None:
    if "service" in request.fixturenames:
        service = request.getfixturevalue("service")
        eventually(lambda: len(service.pids()) == 2)


def ask_until_both_respond(service: Workers) -> None:
    """Ask for one user on new connections, until it is in the cache of both workers."""
    client = Client(service.port)

    def is_cached() -> bool:
        assert client.by_input("@alice").status == 200
        # As last reported by the workers: up to a second ago.
        return int(service.status()["cache"]["entries"]["found"]) == 2

    eventually(is_cached)


def test_service_is_announced_once_all_workers_serve(service: Workers) -> None:
    assert [each.split()[0] for each in service.process.announced].count("Listening") == 1
    (started,) = [line for line in log_lines(service) if line["event"] == "started"]
    assert started["listen"] == [f"127.0.0.1:{service.port}"]
    assert (started["workers"], started["keys"]) == (2, 3)


def test_status_lists_the_workers(service: Workers) -> None:
    def requests(status: Any) -> tuple[int, int]:
        """Of all processes, also of those that have ended, and of these workers."""
        total = sum(status["requests"].get("url", {}).values())
        return total, sum(each["requests"] for each in status["workers"])

    before = requests(service.status())
    ask_until_both_respond(service)
    Client(service.port).by_input("@alice")
    status = service.status()
    assert (status["status"], status["pid"]) == ("ready", service.process.process.pid)
    assert [each["name"] for each in status["workers"]] == ["worker 1", "worker 2"]
    assert all(each["requests"] > 0 for each in status["workers"])
    assert all(0 <= each["heartbeat_age"] < 3 for each in status["workers"])
    total, of_workers = requests(status)
    assert total - before[0] == of_workers - before[1] > 0
    eventually(lambda: service.metric("idv_requests_total", operation="url") >= total)


def test_metrics_of_processes_are_sums(service: Workers) -> None:
    pids = [service.process.process.pid, *children(service.process.process.pid)]
    assert len(pids) == 4  # the supervisor, two workers and their manager
    resident = service.metric("process_resident_memory_bytes")
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    assert resident == pytest.approx(sum(pages) * os.sysconf("SC_PAGESIZE"), rel=0.2)
    assert 0 < service.metric("process_start_time_seconds") < time.time()
    each = HttpLimits().within_descriptors().max_connections
    assert service.metric("idv_connections_limit") == 2 * each


def test_request_ids_are_unique_across_workers(service: Workers) -> None:
    ids = [Client(service.port).by_input("@alice").headers["x-request-id"] for _ in range(20)]
    assert len(set(ids)) == 20
    assert len({each.partition("-")[0] for each in ids}) == 2


def test_rate_limit_is_that_of_one_process(service: Workers) -> None:
    """Requests of one key on connections of both workers, several at once."""
    with loaded(service.port, lookup_request("@alice", LIMITED_KEY)) as load:
        load.wait_for(3 * ALLOWED)
    assert ALLOWED <= load.results["ok"] <= ALLOWED * 1.1
    assert set(load.results) == {"ok", "HTTP/1.1 429 Too Many Requests\r\n"}


def test_connections_in_the_queue_of_a_killed_worker_are_served(service: Workers) -> None:
    """They are accepted by nothing while the worker is stopped, and then by its successor."""
    ask_until_both_respond(service)
    stopped = service.pids()[0]
    os.kill(stopped, signal.SIGSTOP)
    with ExitStack() as stack:
        connections = [stack.enter_context(Client(service.port).connection()) for _ in range(16)]
        for each in connections:
            each.send(REQUEST)
        os.kill(stopped, signal.SIGKILL)
        assert {status_of(each.read_reply()) for each in connections} == {200}
    eventually(lambda: service.has_replaced(stopped))


def test_terminated_worker_is_replaced_and_loses_nothing(service: Workers) -> None:
    service.wait_until_stable()
    with loaded(service.port, REQUEST) as load:
        load.wait_for(20)
        pid = service.pids()[0]
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: service.has_replaced(pid))
        stopped = f"(pid {pid}) stopped: exit code 0"
        eventually(lambda: stopped in service.process.read_log())
        load.wait_for(20)
    assert set(load.results) == {"ok"}


@contextmanager
def reloading(service: Workers) -> Iterator[Callable[[str], AdminReply]]:
    """Yield what reloads a configuration; restore that of the service at the end."""

    def reload(text: str) -> AdminReply:
        (service.folder / "config.yaml").write_text(text)
        return ask_admin(service, "/reload", {})

    yield reload
    assert reload(CONFIG).status == 200


def profile_urls(service: Workers) -> set[str]:
    """What both workers respond: of 16 connections each gets some."""
    client = Client(service.port)
    return {json.loads(client.by_input("@alice").body)["profile_url"] for _ in range(16)}


OTHER = CONFIG.replace("https://profiles.example", "https://other.example")
HERE, THERE = {"https://profiles.example/m/alice"}, {"https://other.example/m/alice"}


def test_reload_is_effective_in_every_worker(service: Workers) -> None:
    reloads = service.metric("idv_reloads_total", result="ok")
    with reloading(service) as reload:
        assert profile_urls(service) == HERE
        assert reload(OTHER).json == {"status": "ok", "needs_restart": []}
        assert profile_urls(service) == THERE
        assert service.metric("idv_reloads_total", result="ok") == reloads + 1
        assert service.status()["last_reload"]["result"] == "ok"
        *_, line = [each for each in log_lines(service) if each["event"] == "reloaded"]
        assert (line["trigger"], line["result"]) == ("admin", "ok")


@pytest.mark.parametrize("victim", ["manager", "worker"])
def test_workers_have_one_configuration_whatever_is_killed(service: Workers, victim: str) -> None:
    """The new one if that was reported, the old one if it was not, and one of them otherwise."""
    old = HERE
    with reloading(service) as reload, loaded(service.port, REQUEST, pause=0.02) as load:
        for number in range(1, KILLS + 1):
            service.wait_until_stable()
            pid = service.manager() if victim == "manager" else service.pids()[0]
            new = {f"https://site{number}.example/m/alice"}
            kill = threading.Timer(STEP * number, os.kill, (pid, signal.SIGKILL))
            kill.start()
            allowed = [old, new]
            with suppress(OSError, http.client.HTTPException):
                reply = reload(CONFIG.replace("profiles.example", f"site{number}.example"))
                allowed = [new] if reply.status == 200 else [old]
            kill.join()
            eventually(lambda pid=pid: pid not in children(service.process.process.pid))
            eventually(service.is_whole)
            eventually(lambda: len(profile_urls(service)) == 1)
            old = profile_urls(service)
            assert old in allowed
            load.wait_for(5)
    assert set(load.results) <= ({"ok"} if victim == "manager" else {"ok", "lost"})
    assert load.results["lost"] <= 4 * KILLS  # one request of each client


def test_each_process_has_only_its_own_sockets(service: Workers) -> None:
    """Otherwise none would notice the end of the supervisor, or a listener outlives its worker."""
    supervisor = service.process.process.pid
    assert len([*Path(f"/proc/{supervisor}/task").iterdir()]) == 1, (
        "it has a thread: it may not fork"
    )
    # Two public ones, that of the admin listener, two for signals, one to each process: more while
    # one is replaced.
    eventually(lambda: len(socket_inodes(supervisor)) == 2 + 1 + 2 + 3)
    of_supervisor = socket_inodes(supervisor)
    for pid in service.pids():
        assert len(socket_inodes(pid) & of_supervisor) == 1


def socket_inodes(pid: int) -> set[str]:
    links = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has been closed meanwhile
            links.add(str(each.readlink()))
    return {each for each in links if each.startswith("socket:")}


@pytest.mark.parametrize("workers", [1, 2])
def test_stop_drains_every_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """All log lines are whole, though four processes wrote; the service manager is notified."""
    config = CONFIG.replace("workers: 2", f"workers: {workers}")
    address = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, ExitStack() as stack:
        manager.bind(address)
        manager.settimeout(10)
        process = stack.enter_context(running(prepare(tmp_path, config)))
        service = Workers(process)
        assert ask_admin(service, "/reload", {}).status == 200
        ready = f"READY=1\nMAINPID={process.process.pid}"
        notified: list[str] = []
        while notified.count("WATCHDOG=1") < 2 or notified.count(ready) < 2:
            notified.append(manager.recv(1000).decode())
        with begun_request(Client(service.port)) as (connection, body):
            process.send_signal()
            eventually(lambda: not listens(service.port))
            for pid in children(process.process.pid):  # systemd signals all processes
                os.kill(pid, signal.SIGTERM)
            assert ask_admin(service, "/health/ready").status == 503
            connection.send(body)
            assert status_of(connection.read_reply()) == 200
        assert process.wait() == 0
        assert b"STOPPING=1" in iter(lambda: manager.recv(1000), b"")
    states = [each.partition("\n")[0] for each in notified if each != "WATCHDOG=1"]
    assert states == ["READY=1", "RELOADING=1", "READY=1"]
    lines = log_lines(service)
    assert (lines[-1]["event"], lines[-1]["drained"]) == ("stopped", True)
    assert "@alice" in {line.get("subject") for line in lines}


def log_lines(service: Workers) -> list[dict[str, Any]]:
    return [json.loads(line) for line in service.process.read_log().splitlines()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_workers_drain_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    """A request in flight is still answered, and the port is free, without ``drain.delay``."""
    config = CONFIG.replace("timeout: 5s", "timeout: 5s, delay: 60s")
    with running(prepare(tmp_path, config)) as process:
        service = Workers(process)
        pids = service.pids()
        with begun_request(Client(service.port)) as (connection, body):
            process.send_signal(signal.SIGKILL)
            eventually(lambda: not listens(service.port))
            connection.send(body)
            assert status_of(connection.read_reply()) == 200
        eventually(lambda: not any(map(is_running, pids)))
        with socket.create_server(("127.0.0.1", service.port)):
            pass
    assert "the supervisor is gone: stopping" in process.read_log()


# Tornado's `bind_sockets` does not close the socket that it cannot bind.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_port_in_use_is_an_error() -> None:
    """Though another socket could be bound beside those of this service."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}: Address al"):
            bind_each("server", Address("127.0.0.1", port), 2)

"""Processes of a service of two workers that are killed during reloads; everything is real.

``KILLS=50`` makes the run longer.
"""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.http.load import loaded
from support.processes.admin import ask_admin
from support.processes.process import children, eventually, running
from support.processes.service import KEY, Client, lookup_request, write_config

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("KILLS", "5"))
STEP = 0.004
"""Seconds by which each kill is later in its reload than the one before."""
STABLE = 1.5
"""Seconds since its start after which a process that ends is replaced at once."""
CONFIG = """\
profile_sites: [https://site{number}.example]
server: {{port: 0, workers: 2, drain: {{timeout: 5s}}}}
{admin}
auth: {{keys: [{{id: caller, token: {key}}}]}}
backends: [{{name: users{number}, kind: yaml, path: users.yaml}}]
"""
REQUEST = lookup_request("@alice")


class Service:
    """A running service of two workers, and its file."""

    def __init__(self, folder: Path, *, admin: bool) -> None:
        self.path = folder / "config.yaml"
        self._admin = "admin: {port: 0}" if admin else ""
        write_config(folder)
        self.write(0)

    def write(self, number: int) -> None:
        self.path.write_text(CONFIG.format(number=number, admin=self._admin, key=KEY))

    @contextmanager
    def running(self) -> Iterator[None]:
        with running(self.path, timeout=100 + 10 * KILLS) as self.process:
            self.client = Client(self.process.port)
            yield

    @property
    def admin_url(self) -> str | None:
        return self.process.admin_url

    def pids(self) -> list[int]:
        return children(self.process.process.pid)

    def manager(self) -> int:
        """The process that has the admin listener."""
        workers = {each["pid"] for each in ask_admin(self, "/status.json").json["workers"]}
        (manager,) = set(self.pids()) - workers
        return manager

    def sites(self) -> set[int]:
        """The numbers of the configurations that 16 new connections get responses of."""
        bodies = [self.client.by_input("@alice").body.decode() for _ in range(16)]
        return {int(each.partition("https://site")[2].partition(".")[0]) for each in bodies}

    def is_whole(self) -> bool:
        with suppress(OSError, http.client.HTTPException):  # the manager is being started
            status = ask_admin(self, "/status.json").json
            return [each["phase"] for each in status["workers"]] == ["ready"] * 2
        return False


def age(pid: int) -> float:
    """The seconds since a process was started."""
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return up - started / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path, admin=True)
    with service.running():
        yield service


@pytest.mark.parametrize("victim", ["manager", "worker"])
def test_workers_have_one_configuration_whatever_is_killed(service: Service, victim: str) -> None:
    """The new one if that was reported, the old one if it was not, and one of them otherwise."""
    old = requests = 0
    with loaded(service.process.port, REQUEST, pause=0.02) as load:
        for new in range(1, KILLS + 1):
            manager = service.manager()
            worker = next(each for each in service.pids() if each != manager)
            pid = manager if victim == "manager" else worker
            eventually(lambda pid=pid: age(pid) > STABLE)
            service.write(new)
            timer = threading.Timer(STEP * new, os.kill, (pid, signal.SIGKILL))
            timer.start()
            allowed = {old, new}
            with suppress(OSError, http.client.HTTPException):
                allowed = {new if ask_admin(service, "/reload", {}).status == 200 else old}
            timer.join()
            eventually(lambda pid=pid: pid not in service.pids())
            eventually(service.is_whole)
            eventually(lambda: len(service.sites()) == 1)
            (old,) = service.sites()
            assert old in allowed
            counted = (
                ask_admin(service, "/status.json").json["requests"].get("url", {}).get("ok", 0)
            )
            assert counted >= requests
            requests = counted
            load.wait_for(5)
    assert set(load.results) <= ({"ok"} if victim == "manager" else {"ok", "lost"})
    assert load.results["lost"] <= 4 * KILLS  # one request of each client


def test_hangup_while_the_manager_is_started_again_is_not_lost(tmp_path: Path) -> None:
    """It is there without an admin listener, too."""
    service = Service(tmp_path, admin=False)
    with service.running():
        assert len(service.pids()) == 3
        os.kill(max(service.pids()), signal.SIGKILL)  # it was started last
        service.write(1)
        service.process.send_signal(signal.SIGHUP)
        eventually(lambda: service.sites() == {1})
        eventually(lambda: len(service.pids()) == 3)
        service.path.write_text("wrong: 1\n")
        service.process.send_signal(signal.SIGHUP)
        eventually(lambda: "the old one stays in force" in service.process.read_log())
        assert service.sites() == {1}
        started = time.monotonic()
        service.process.send_signal()
        assert service.process.wait() == 0
        assert time.monotonic() - started < 5

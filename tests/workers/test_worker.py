"""A worker and its supervisor, which a test plays in a thread; the worker runs in this process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.processes.control_channel import ControlEnd
from support.processes.loggers import put_back
from support.processes.service import FIXTURE, KEY, Client
from tornado_idv.config.load import ConfigFile
from tornado_idv.interfaces.backend import Backend, BackendOptions
from tornado_idv.interfaces.hookspecs import Kinds, hookimpl
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Query, User
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.service.limiters import make_limiters
from tornado_idv.service.service import Inherited
from tornado_idv.service.sockets import bind, port_of
from tornado_idv.workers.channel import Message
from tornado_idv.workers.reload_all import Configuration
from tornado_idv.workers.worker import run_worker

CONFIG = f"""\
profile_sites: [https://profiles.example]
server: {{port: 0, workers: 2, drain: {{timeout: 5s}}}}
auth: {{keys: [{{id: caller, token: {KEY}}}]}}
backends: [{{name: users, kind: yaml, path: users.yaml}}]
"""
OTHER = CONFIG.replace("profiles.example", "other.example")
TIMEOUT = 10.0


class Slow(Backend[BackendOptions]):
    """A backend that does not open until it is cancelled."""

    opens = threading.Event()

    async def open(self) -> None:
        self.opens.set()
        await asyncio.Event().wait()

    async def find(self, query: Query) -> User | None:
        return None


class Plugin:
    """A plugin with the kind ``slow``."""

    @hookimpl
    def idv_kinds(self) -> Kinds:
        return Kinds({"slow": Slow})


class Worker:
    """What a test sees of a worker: its end of the connection, its port and its exit code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "users.yaml").write_text(FIXTURE)
        self.sockets = bind("server", "127.0.0.1", 0)
        self.client = Client(port_of(self.sockets))

    def run(
        self, supervise: Callable[[ControlEnd], None], config: str = CONFIG
    ) -> tuple[int, list[Message]]:
        """Run the worker and its supervisor; return the exit code, and its last messages."""
        path = self.folder / "config.yaml"
        path.write_text(config)
        manager = plugin_manager(plugins=[Plugin()])
        file = ConfigFile.read(path)
        settings = file.load(installed_kinds(manager), {})
        inherited = Inherited(self.sockets, make_limiters(settings.limits, 1))

        def play(control: ControlEnd) -> list[Message]:
            try:
                supervise(control)
                return control.rest() if control.is_open else []
            except BaseException:
                control.close()  # ends the worker
                raise

        with ControlEnd() as control, ThreadPoolExecutor(1) as thread:
            played = thread.submit(play, control)
            # The timeout of pytest raises in a callback of the event loop, which goes on.
            is_hung = threading.Event()

            def interrupt() -> None:
                is_hung.set()
                os.kill(os.getpid(), signal.SIGINT)

            timer = threading.Timer(2 * TIMEOUT, interrupt)
            timer.start()
            try:
                current = Configuration(file, settings)
                code = run_worker(current, manager, inherited, control.theirs)
            except KeyboardInterrupt:
                pytest.fail("the worker does not end")
            finally:
                timer.cancel()
            assert not is_hung.is_set(), "the worker does not end by itself"
            return code, played.result(TIMEOUT)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr("tornado_idv.workers.worker.tune_gc", lambda: None)
    worker = Worker(tmp_path)
    with put_back():
        yield worker
    for each in worker.sockets:
        each.close()


def counted_requests(messages: list[Message]) -> int:
    """Return the number of responses in the last report."""
    counters = Counters()
    counters.merge([each["report"] for each in messages if each["op"] == "report"][-1]["counters"])
    return sum(each.count for _, each in counters.responses.items())


def drain(control: ControlEnd) -> None:
    control.send("drain", delay=False)


def profile_url(worker: Worker) -> str:
    return str(json.loads(worker.client.by_input("@alice").body)["profile_url"])


HERE, THERE = "https://profiles.example/m/alice", "https://other.example/m/alice"


def test_worker_reports_that_it_serves_and_what_it_has_counted(worker: Worker) -> None:
    """The last report has the requests up to the end: otherwise counters would go backwards."""

    def supervise(control: ControlEnd) -> None:
        assert control.receive() == {"op": "report", "report": None}
        assert control.wait_for("ready")["keys"] == 1
        for _ in range(3):
            assert worker.client.by_input("@alice").status == 200
        drain(control)

    code, messages = worker.run(supervise)
    assert code == 0
    assert counted_requests(messages) == 3


def test_report_is_sent_before_the_reply_to_its_command(worker: Worker) -> None:
    reports: list[Message] = []

    def supervise(control: ControlEnd) -> None:
        control.wait_for("ready")
        worker.client.by_input("@alice")
        control.send("do", id=7, command="report", args={"take_lag": True})
        while (message := control.receive()) is not None and message["op"] != "reply":
            reports.append(message)
        assert message == {"op": "reply", "id": 7, "result": None}
        drain(control)

    worker.run(supervise)
    assert counted_requests(reports) == 1


def test_cache_is_purged_and_a_lookup_explained_by_command(worker: Worker) -> None:
    caches: list[Any] = []

    def supervise(control: ControlEnd) -> None:
        control.wait_for("ready")
        for target in ({"all": True}, {"nickname": "@alice"}, {"backend": "users"}):
            worker.client.by_input("@alice")
            caches.append(control.do("explain", input="@alice")["result"]["cache"])
            assert control.do("purge", **target)["result"] is True
            caches.append(control.do("explain", input="@alice")["result"]["cache"])
        drain(control)

    worker.run(supervise)
    assert caches == ["found", "absent"] * 3


def test_command_that_fails_is_replied_to_by_its_error(
    worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    def supervise(control: ControlEnd) -> None:
        control.wait_for("ready")
        assert control.do("report", no_such=1)["error"] == "TypeError"
        assert control.do("report", take_lag=False)["result"] is None
        drain(control)

    assert worker.run(supervise)[0] == 0
    assert "command report failed" in capfd.readouterr().err


def test_configuration_is_prepared_and_put_in_force_by_command(worker: Worker) -> None:
    """The supervisor is sent when backends are opened, which may block the worker."""

    def supervise(control: ControlEnd) -> None:
        control.wait_for("ready")
        control.send("do", id=1, command="prepare", args={"content": OTHER})
        assert [control.wait_for("preparing")["now"] for _ in range(2)] == [True, False]
        assert control.wait_for("reply")["result"] is None
        assert profile_url(worker) == HERE
        control.do("report", take_lag=False)
        control.do("purge", all=True)
        control.do("explain", input="@alice")
        control.do("commit")
        assert profile_url(worker) == THERE
        invalid = control.do("prepare", content=f"{OTHER}no_such: 1\n")["result"]
        assert "no_such" in invalid["problems"][0]
        control.do("abort")
        assert profile_url(worker) == THERE
        drain(control)

    assert worker.run(supervise)[0] == 0


def test_terminated_worker_asks_to_be_replaced_and_serves_on(worker: Worker) -> None:
    def supervise(control: ControlEnd) -> None:
        control.wait_for("ready")
        os.kill(os.getpid(), signal.SIGTERM)
        control.wait_for("retire")
        assert worker.client.by_input("@alice").status == 200
        drain(control)

    assert worker.run(supervise)[0] == 0


def test_worker_without_a_supervisor_stops(
    worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    def supervise(control: ControlEnd) -> None:
        control.wait_for("ready")
        control.close()

    assert worker.run(supervise, CONFIG.replace("timeout: 5s", "timeout: 5s, delay: 60s"))[0] == 0
    assert "the supervisor is gone: stopping" in capfd.readouterr().err


def test_request_that_is_left_after_the_drain_is_in_the_exit_code(
    worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    head = b"POST /api/v1/identify/url HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
    rest = b"\r\nExpect: 100-continue\r\nContent-Length: 20\r\n\r\n"

    def supervise(control: ControlEnd) -> None:
        control.wait_for("ready")
        with worker.client.connection() as connection:
            connection.send(head + KEY.encode() + rest)
            continued = connection.read_reply()
            assert continued is not None
            assert continued.status == 100
            drain(control)
            control.wait_for("report")

    assert worker.run(supervise, CONFIG.replace("timeout: 5s", "timeout: 0s"))[0] == 1
    assert "stopped with requests unanswered after the drain" in capfd.readouterr().err


def test_worker_that_cannot_start_reports_why(worker: Worker) -> None:
    code, messages = worker.run(lambda _: None, CONFIG.replace("users.yaml", "gone.yaml"))
    assert code == 3
    (failed,) = [each for each in messages if each["op"] == "failed"]
    assert "gone.yaml" in failed["error"]["message"]


def test_stop_does_not_wait_for_a_backend_that_is_opened(worker: Worker) -> None:
    Slow.opens.clear()

    def supervise(control: ControlEnd) -> None:
        assert Slow.opens.wait(TIMEOUT)
        drain(control)

    code, messages = worker.run(supervise, CONFIG.replace("yaml, path: users.yaml", "slow"))
    assert code == 0
    assert [each["op"] for each in messages if each["op"] != "report"] == []

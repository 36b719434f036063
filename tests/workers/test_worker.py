"""A worker and its supervisor, which a test plays in a thread; the worker runs in this process."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.databases.key_stores import make_store
from support.processes.control_channel import ControlEnd
from support.processes.loggers import put_back
from support.processes.ports import listens
from support.processes.process import eventually
from support.processes.reloads import Gated
from support.processes.service import FIXTURE, KEY, Client, begun_request, serving_here
from support.processes.supervision import configuration
from tornado_idv.config.address import Address
from tornado_idv.interfaces.backend import Backend, BackendOptions
from tornado_idv.interfaces.hookspecs import Kinds, hookimpl
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Query, User
from tornado_idv.service.sockets import bind
from tornado_idv.workers.channel import Message, MessageStream, connected
from tornado_idv.workers.worker import _report, run_worker

CONFIG = f"""\
profile_sites: [https://profiles.example]
server: {{port: 0, workers: 2, health_path: /health, drain: {{timeout: 5s}}}}
auth: {{keys: [{{id: caller, token: {KEY}}}]}}
backends: [{{name: users, kind: yaml, path: users.yaml}}]
"""
OTHER = CONFIG.replace("profiles.example", "other.example")
TIMEOUT = 10.0
# By default, a timeout raises in a callback of the worker's event loop, which goes on.
pytestmark = pytest.mark.timeout(60, method="thread")


class Slow(Backend[BackendOptions]):
    """A backend that does not open until it is cancelled, which takes a moment."""

    opens = threading.Event()

    async def open(self) -> None:
        self.opens.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            self.opens.clear()

    async def find(self, query: Query) -> User | None:
        return None


class Plugin:
    @hookimpl
    def idv_kinds(self) -> Kinds:
        return Kinds({"slow": Slow, "gated": Gated})


class Worker:
    """What a test sees of a worker: its end of the connection, its port and its exit code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "users.yaml").write_text(FIXTURE)
        self.sockets = bind("server.port", Address("127.0.0.1"))
        self.client = Client(Address.of(self.sockets[0]).port)

    def run(
        self, supervise: Callable[[ControlEnd], None], config: str = CONFIG
    ) -> tuple[int, list[Message]]:
        """Run the worker and its supervisor; return the exit code, and its last messages."""
        current = configuration(self.folder, config, Plugin())

        def play(control: ControlEnd) -> list[Message]:
            try:
                supervise(control)
                return control.rest() if control.is_open else []
            except BaseException:
                control.close()  # ends the worker
                raise

        with ControlEnd() as control, ThreadPoolExecutor(1) as thread:
            played = thread.submit(play, control)
            code = run_worker(current, self.sockets, control.theirs)
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
    counters.merge(messages[-1]["state"]["report"]["counters"])
    return sum(each.count for _, each in counters.responses.items())


def drain(control: ControlEnd) -> None:
    control.send("drain", delay=False)


def profile_url(worker: Worker) -> str:
    return str(json.loads(worker.client.by_input("@alice").body)["profile_url"])


HERE, THERE = "https://profiles.example/m/alice", "https://other.example/m/alice"


def test_worker_reports_that_it_serves_and_what_it_has_counted(worker: Worker) -> None:
    """It serves on when it is terminated. The last report has the requests up to the end."""

    def supervise(control: ControlEnd) -> None:
        assert control.wait_for(lambda _: True).keys is None
        assert control.wait_until_serving().keys == 1
        for _ in range(2):
            assert worker.client.by_input("@alice").status == 200
        os.kill(os.getpid(), signal.SIGTERM)
        control.wait_for(lambda state: state.retiring)
        control.wait_for(lambda state: state.report and state.report["process"]["max_lag"])
        assert worker.client.by_input("@alice").status == 200
        drain(control)

    code, messages = worker.run(supervise)
    assert code == 0
    assert counted_requests(messages) == 3


async def test_reported_lag_is_that_since_the_last_report(tmp_path: Path) -> None:
    config = CONFIG.replace("workers: 2, ", "")
    async with serving_here(config, tmp_path) as service:
        service.counters.max_lag = 0.3
        lags = [_report(service)["process"].max_lag for _ in range(2)]
    assert lags == [0.3, 0.0]


def asked(control: ControlEnd, ask: Callable[[str], Awaitable[None]]) -> None:
    """Ask the worker for something at its address; then stop it."""
    address = control.wait_until_serving().address
    assert address is not None
    asyncio.run(ask(address))
    drain(control)


async def reply(address: str, op: str, args: object) -> Any:
    async with connected(address) as connection:
        connection.send(op=op, args=args)
        return await connection.receive()


def test_cache_is_purged_and_a_lookup_explained(
    worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also after a command that failed."""
    caches: list[Any] = []

    async def ask(address: str) -> None:
        assert await reply(address, "purge", {"card_number": 1}) == {"error": "AttributeError"}
        for target in ({"all": True}, {"nickname": "@alice"}, {"backend": "users"}):
            worker.client.by_input("@alice")
            for _ in range(2):
                explained = await reply(address, "explain", {"input": "@alice"})
                caches.append(explained["result"]["cache"])
                assert await reply(address, "purge", target) == {"result": True}

    worker.run(lambda control: asked(control, ask))
    assert caches == ["found", "absent"] * 3
    assert "command purge failed" in capfd.readouterr().err


async def prepare(connection: MessageStream, content: str) -> Any:
    """Return the failure to prepare a configuration, or ``None``."""
    connection.send(op="prepare", args=content)
    assert await connection.receive() == {"begun": True}
    prepared = await connection.receive()
    assert prepared is not None
    return prepared["result"]


def test_configuration_is_prepared_and_put_in_force(worker: Worker) -> None:
    """Meanwhile, anything else can be asked for. The reply to a wrong one has its problems."""

    async def ask(address: str) -> None:
        async with connected(address) as connection:
            failed = await prepare(connection, f"{OTHER}no_such: 1\n")
        assert failed["code"] == "invalid_configuration"
        assert "no_such" in failed["problems"][0]
        async with connected(address) as connection:
            assert await prepare(connection, OTHER) is None
            assert profile_url(worker) == HERE
            assert await reply(address, "purge", {"all": True}) == {"result": True}
            connection.send(generation=7)
            assert await connection.receive() == {"result": None}
        assert profile_url(worker) == THERE

    code, messages = worker.run(lambda control: asked(control, ask))
    assert code == 0
    assert any(each["state"]["preparing"] for each in messages)
    last = messages[-1]["state"]
    assert (last["preparing"], last["generation"]) == (False, 7)


def test_end_of_the_connection_aborts_a_prepared_configuration(worker: Worker) -> None:
    """Only then is another one prepared."""

    async def ask(address: str) -> None:
        async with connected(address) as first, connected(address) as second:
            before = len(Gated.made)
            other = OTHER.replace("yaml, path: users.yaml", "gated")
            assert await prepare(first, other) is None
            assert Gated.made[-1].is_open
            second.send(op="prepare", args=CONFIG.replace("profiles.example", "third.example"))
            waiting = asyncio.create_task(second.receive())
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await first.aclose()
            assert await waiting == {"begun": True}
            assert [each.is_open for each in Gated.made[before:]] == [False]
            assert await second.receive() == {"result": None}
            assert profile_url(worker) == HERE
            second.send(generation=1)
            await second.receive()
        assert profile_url(worker) == "https://third.example/m/alice"

    assert worker.run(lambda control: asked(control, ask))[0] == 0


def test_end_of_the_connection_ends_a_preparation(worker: Worker) -> None:
    """A backend that does not open delays no other configuration, but they do not overlap."""

    async def ask(address: str) -> None:
        async with connected(address) as connection:
            connection.send(op="prepare", args=OTHER.replace("yaml, path: users.yaml", "slow"))
            await asyncio.to_thread(Slow.opens.wait, TIMEOUT)
        async with connected(address) as connection:
            connection.send(op="prepare", args=OTHER)
            assert await connection.receive() == {"begun": True}
            assert not Slow.opens.is_set()
            assert await connection.receive() == {"result": None}
        assert profile_url(worker) == HERE

    assert worker.run(lambda control: asked(control, ask))[0] == 0


@pytest.mark.parametrize(("level", "logged"), [("info", True), ("error", False)])
def test_request_that_is_left_after_the_drain_is_in_the_exit_code(
    worker: Worker, capfd: pytest.CaptureFixture[str], level: str, *, logged: bool
) -> None:
    def supervise(control: ControlEnd) -> None:
        control.wait_until_serving()
        with begun_request(worker.client):
            drain(control)
            control.rest()  # not one message: that may be its state while it waits

    config = f"{CONFIG.replace('timeout: 5s', 'timeout: 0s')}logging: {{level: {level}}}\n"
    assert worker.run(supervise, config)[0] == 1
    reported = "stopped with requests unanswered after the drain" in capfd.readouterr().err
    assert reported is logged


def test_worker_that_drains_prepares_nothing(worker: Worker) -> None:
    """It would end amid a reload, and fail that."""

    async def ask(address: str) -> None:
        async with connected(address) as connection:
            connection.send(op="prepare", args=OTHER)
            assert await connection.receive() is None

    def supervise(control: ControlEnd) -> None:
        address = control.wait_until_serving().address
        assert address is not None
        with begun_request(worker.client):
            drain(control)
            eventually(lambda: not listens(worker.client.port))
            asyncio.run(ask(address))

    worker.run(supervise)


@pytest.mark.slow
def test_commit_during_the_stop_leaves_the_health_check_failing(worker: Worker) -> None:
    health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"

    async def ask(address: str, control: ControlEnd) -> None:
        async with connected(address) as connection:
            assert await prepare(connection, OTHER) is None
            control.send("drain", delay=True)
            eventually(lambda: worker.client.raw(health)[0].status == 503)
            connection.send(generation=1)
            await connection.receive()  # nothing, because the change is aborted
            assert worker.client.raw(health)[0].status == 503

    config = CONFIG.replace("5s", "5s, delay: 1s")
    worker.run(lambda each: asyncio.run(ask(str(each.wait_until_serving().address), each)), config)


def test_conflict_with_the_key_store_is_reported_with_its_position(worker: Worker) -> None:
    make_store(worker.folder / "keys.db", "caller")

    def supervise(control: ControlEnd) -> None:
        (problem,) = control.wait_for(lambda state: state.error).problems
        assert (problem.line, problem.path) == (3, "auth.keys[0].id")

    assert worker.run(supervise, CONFIG.replace("keys: [", "store: keys.db, keys: ["))[0] == 3


def test_stop_does_not_wait_for_a_backend_that_is_opened(worker: Worker) -> None:
    def supervise(control: ControlEnd) -> None:
        assert Slow.opens.wait(TIMEOUT)
        drain(control)

    code, messages = worker.run(supervise, CONFIG.replace("yaml, path: users.yaml", "slow"))
    assert code == 0
    assert {(each["state"]["keys"], each["state"]["error"]) for each in messages} == {(None, None)}

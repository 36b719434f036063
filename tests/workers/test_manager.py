"""The manager process, with a supervisor and workers that a test plays."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from support.fakes.clock_and_backends import LoopClock
from support.processes.admin import AdminReply, admin_port, ask_admin
from support.processes.control_channel import ControlEnd
from support.processes.loggers import put_back
from support.processes.supervision import configuration
from tornado_idv.admin.listener import admin_listening
from tornado_idv.admin.report import ReloadResult
from tornado_idv.config.address import Address
from tornado_idv.errors import StartError
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.keys import Keys
from tornado_idv.service.part import Prepared
from tornado_idv.service.reload import Reloader
from tornado_idv.service.sockets import bind
from tornado_idv.workers import manager as manager_module
from tornado_idv.workers.channel import Channel, Message, MessageStream, control_socket
from tornado_idv.workers.manager import Manager, run_manager

CONFIG = """\
profile_sites: [https://profiles.example]
admin: {port: 0}
backends: [{name: users, kind: yaml, path: users.yaml}]
"""
OTHER = f"""\
{CONFIG.replace("name: users", "name: members")}auth: {{keys: [{{id: ops, sha256: {"0" * 64}}}]}}
identifiers: {{nickname_pattern: x+}}
"""
SHARED = f"""\
{CONFIG}shared_cache: {{kind: redis, url: 'redis://127.0.0.1', secret: {"x" * 32}}}
"""
PURGE = "/cache/purge", {"all": True}
EXPLAIN = "/explain", {"input": "@alice"}
REFUSED = "\0no process has this address"


class PlayedWorker:
    """A worker that replies to each message with the next of ``replies``.

    ``None`` is the end of the connection, and without another reply it is silent.
    ``received`` ends with ``None`` when the manager has closed its end.
    """

    def __init__(
        self, *replies: Message | None, phase: str = "ready", address: str | None = REFUSED
    ) -> None:
        self.phase = phase
        self.address = address
        self.received: list[Message | None] = []
        self.asked = asyncio.Event()
        self.on_connection: Callable[[], object] = lambda: None
        self._replies = iter(replies)

    async def serve(self, connection: MessageStream) -> None:
        self.on_connection()
        message: Message | None = {}
        while message is not None:
            message = await connection.receive()
            self.received.append(message)
            self.asked.set()
            for reply in self._replies:
                if reply is None:
                    return
                connection.send(**reply)
                if "begun" not in reply:
                    break


class Harness:
    """A manager, and what it sends to the supervisor, which replies with ``used`` to ``use``."""

    def __init__(self, path: Path, workers: Sequence[PlayedWorker]) -> None:
        self.path = path
        self.workers = workers
        self.sent: list[Message] = []
        self.overview: Message | None = overview("ready")
        self.used = ReloadResult(5.0, ("server.port",))
        self.may_use = asyncio.Event()
        self.may_use.set()
        self.manager: Manager
        self.admin_url: str | None = None

    @property
    def operations(self) -> list[str]:
        return [each["op"] for each in self.sent if each["op"] not in ("state", "overview")]

    @property
    def backends(self) -> list[str]:
        return [each.name for each in self.manager.settings.served]

    async def supervise(self, connection: MessageStream) -> None:
        while (message := await connection.receive()) is not None:
            self.sent.append(message)
            if message["op"] == "overview" and self.overview is not None:
                workers = [
                    {**WORKER, "name": f"worker {i}", "pid": 10 + i}
                    | {"phase": each.phase.replace("ended", "ready"), "address": each.address}
                    for i, each in enumerate(self.workers, 1)
                ]
                connection.send(op="reply", **{**self.overview, "workers": workers})
            if message["op"] == "use":
                await self.may_use.wait()
                serving = [i for i, each in enumerate(self.workers, 11) if each.phase == "ready"]
                used = {"result": self.used, "generation": 7}
                has_all = set(message["prepared"]).issuperset(serving)
                connection.send(op="reply", **(used if has_all else {}))

    def show_the_second_after_the_first(self) -> None:
        """Let the second worker begin once the manager is connected to the first."""
        workers = self.workers
        self.workers = workers[:1]
        workers[0].on_connection = lambda: setattr(self, "workers", workers)

    async def ask(self, path: str, record: object = None) -> AdminReply:
        """Send a request to the admin listener."""
        return await asyncio.to_thread(ask_admin, self, path, record)

    async def reload(self, text: str = OTHER) -> ReloadResult:
        self.path.write_text(text)
        return await asyncio.wait_for(self.manager.reload(), 10)


@asynccontextmanager
async def managed(
    folder: Path, *workers: PlayedWorker, config: str = CONFIG
) -> AsyncIterator[Harness]:
    """Run a manager with an admin listener."""
    current = configuration(folder, config)
    harness = Harness(current.file.path, workers)
    async with AsyncExitStack() as stack:
        for each in workers:
            if each.phase != "ended":
                each.address = await stack.enter_async_context(control_socket(each.serve))
        ours, theirs = map(stack.enter_context, socket.socketpair())
        supervisor, connection = await MessageStream.on(ours), await MessageStream.on(theirs)
        stack.push_async_callback(supervisor.aclose)
        stack.push_async_callback(connection.aclose)
        channel = Channel(connection, None, 0)
        for work in (channel.read(), harness.supervise(supervisor)):
            stack.callback(asyncio.create_task(work).cancel)
        opened = Keys(current.kinds).opened(current.settings.auth)
        keys = await stack.enter_async_context(opened)
        harness.manager = Manager(channel, current, keys)
        stack.push_async_callback(harness.manager.reloader.close)
        sockets = bind("admin", Address("127.0.0.1"))
        listener = admin_listening(sockets, "127.0.0.1", harness.manager)
        await stack.enter_async_context(listener)
        harness.admin_url = Address.of(sockets[0]).url("http")
        yield harness


WORKER = {"started_at": 0.0, "heartbeat_age": 0.5, "requests": 0, "report": None}


def overview(phase: str, *missing: str) -> Message:
    return {
        "phase": phase,
        "pid": 1,
        "started_at": 0.0,
        "restarts": 7,
        "loaded_at": 8.0,
        "last_reload": None,
        "missing": list(missing),
        "ended": Counters().to_record() | {"log_dropped": 3},
    }


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 5 s be half a second, which is long for a response on a busy machine."""
    monkeypatch.setattr(manager_module, "_TIMEOUT", 0.5)


@pytest.mark.usefixtures("short_timeout")
@pytest.mark.parametrize(
    ("workers", "status", "text"),
    [
        ([], 503, b"no worker runs now"),
        ([PlayedWorker(None)], 503, b"no worker runs now"),
        ([PlayedWorker(*[{"result": True}] * 3), PlayedWorker(phase="ended")], 200, b'"ok"'),
        ([PlayedWorker({"result": True}), PlayedWorker(phase="ended", address=None)], 200, b'"ok"'),
        ([PlayedWorker(phase="ended", address="missing")], 503, b"worker 1 (pid 11): No such file"),
        ([PlayedWorker({"result": True}), PlayedWorker()], 503, b"worker 2 (pid 12): no reply"),
        (
            [PlayedWorker({"error": "KeyError"}, phase="starting")],
            503,
            b"worker 1 (pid 11): KeyError",
        ),
    ],
    ids=["none", "all end", "has ended", "starts", "no address", "no reply", "one fails"],
)
async def test_purge_is_done_only_if_every_worker_has_done_it(
    tmp_path: Path, workers: list[PlayedWorker], status: int, text: bytes
) -> None:
    async with managed(tmp_path, *workers) as harness:
        response = await harness.ask(*PURGE)
    assert (response.status, text in response.body) == (status, True), response.body
    assert (b"worker_failed" in response.body) is (status == 503)


async def test_purge_is_also_for_a_worker_that_starts_meanwhile(tmp_path: Path) -> None:
    """It may have read the snapshot of the cache just before the other removed it."""
    workers = [PlayedWorker({"result": True}), PlayedWorker({"result": True}, phase="starting")]
    async with managed(tmp_path, *workers) as harness:
        harness.show_the_second_after_the_first()
        assert (await harness.ask(*PURGE)).status == 200
    assert [len(each.received) for each in workers] == [2, 2]


async def test_purge_is_repeated_after_the_end_of_a_worker(tmp_path: Path) -> None:
    """Its last snapshot may be newer than the purge of the other worker, which removes all."""
    worker = PlayedWorker(*[{"result": True}] * 3)
    async with managed(tmp_path, worker, PlayedWorker(None)) as harness:
        assert (await harness.ask(*PURGE)).status == 200
    assert len(list(filter(None, worker.received))) == 2


@pytest.mark.parametrize(
    ("results", "status"),
    [([True, True], 200), ([False, True], 200), ([False, False], 503)],
    ids=["delivered", "delivered by one", "pending"],
)
async def test_purge_is_done_only_if_the_shared_cache_has_received_it(
    tmp_path: Path, results: list[bool], status: int
) -> None:
    workers = [PlayedWorker({"result": each}) for each in results]
    async with managed(tmp_path, *workers, config=SHARED) as harness:
        response = await harness.ask(*PURGE)
    assert (response.status, b"purge_pending" in response.body) == (status, status == 503)


async def test_shared_cache_that_a_reload_removes_is_in_use_until_a_restart(tmp_path: Path) -> None:
    worker = PlayedWorker({"result": False}, phase="draining")
    async with managed(tmp_path, worker, config=SHARED) as harness:
        assert (await harness.reload(CONFIG)).code is None
        assert (await harness.ask(*PURGE)).status == 503


async def test_first_worker_that_serves_explains(tmp_path: Path) -> None:
    found = {"result": {"result": "found"}}
    workers = [PlayedWorker(phase="draining"), PlayedWorker(None), PlayedWorker(found)]
    async with managed(tmp_path, *workers) as harness:
        response = await harness.ask(*EXPLAIN)
    assert b'"result":"found","worker":"worker 3"' in response.body
    assert workers[0].received == []


@pytest.mark.parametrize("worker", [PlayedWorker(None), PlayedWorker(phase="starting")])
async def test_explain_without_a_worker_is_503(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, worker: PlayedWorker
) -> None:
    async with managed(tmp_path, worker) as harness:
        assert (await harness.ask(*EXPLAIN)).status == 503
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("phase", "missing", "status", "text"),
    [
        ("ready", [], 200, b'{"status":"ready","degraded":[]}'),
        ("ready", ["worker 1"], 200, b'{"status":"degraded","degraded":["worker 1"]}'),
        ("starting", ["worker 1"], 503, b'{"status":"starting","degraded":["worker 1"]}'),
        ("draining", [], 503, b'{"status":"draining","degraded":[]}'),
    ],
)
async def test_readiness_is_that_of_at_least_one_worker(
    tmp_path: Path, phase: str, missing: list[str], status: int, text: bytes
) -> None:
    async with managed(tmp_path, PlayedWorker(phase="starting")) as harness:
        harness.overview = overview(phase, *missing)
        response = await harness.ask("/health/ready")
        assert (response.status, response.body) == (status, text)
        assert b'"worker_restarts":7' in (await harness.ask("/status.json")).body
        metrics = (await harness.ask("/metrics")).body
    assert b"idv_worker_restarts_total 7.0" in metrics
    assert b"idv_log_dropped_total 3.0" in metrics
    assert b"idv_config_last_reload_success_timestamp_seconds 8.0" in metrics
    shown = b'idv_degraded{part="worker 1"} 1.0' in metrics
    assert shown is bool(missing)


@pytest.mark.usefixtures("short_timeout")
async def test_supervisor_that_does_not_respond_is_503(tmp_path: Path) -> None:
    async with managed(tmp_path) as harness:
        harness.overview = None
        response = await harness.ask("/health/ready")
    assert (response.status, b"The supervisor does not respond" in response.body) == (503, True)


async def test_longest_lag_is_kept_until_the_next_scrape(tmp_path: Path) -> None:
    """Workers report that of each second."""
    async with managed(tmp_path, PlayedWorker()) as harness:
        lags: list[float] = []
        for lag, take_lag in [(0.3, False), (0.2, True), (0.1, True)]:
            report = {"process": {"max_lag": lag}, "counters": Counters().to_record()}
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(WORKER, "report", report)
                lags.append((await harness.manager.report(take_lag=take_lag)).process.max_lag)
    assert lags == [0.3, 0.3, 0.1]


async def test_silent_clients_of_the_admin_listener_stop_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They take few descriptors, and the listener still responds."""
    async with managed(tmp_path) as harness:
        address = "127.0.0.1", admin_port(harness)
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(await asyncio.to_thread(socket.create_connection, address, 10))
            assert (await harness.ask("/health/ready")).status == 200
    assert "limit of 64 connections of the admin listener reached" in caplog.text


# Reload

BEGUN, DONE = {"begun": True}, {"result": None}
COMMIT = {"generation": 7}


def prepared() -> PlayedWorker:
    """Return a worker that can prepare anything."""
    return PlayedWorker(BEGUN, DONE, DONE)


async def test_configuration_is_in_force_once_all_have_prepared_it(tmp_path: Path) -> None:
    workers = [prepared(), prepared()]
    async with managed(tmp_path, *workers) as harness:
        assert await harness.reload() == ReloadResult(5.0, ("server.port",))
        assert harness.backends == ["members"]
        assert "ops" in harness.manager.ring.ids
        assert (await harness.ask(*EXPLAIN)).status == 422  # alice is no valid nickname any more
        await asyncio.sleep(0)
        assert harness.operations == ["reloading", "use", "reloaded"]
        (used,) = [each for each in harness.sent if each["op"] == "use"]
        assert used["content"] == OTHER
        states = [each["state"]["generation"] for each in harness.sent if each["op"] == "state"]
        assert states[-1] == 7
    for each in workers:
        assert each.received == [{"op": "prepare", "args": OTHER}, COMMIT, None]


FAILURE = {"at": 1.0, "code": "reload_failed", "problems": ["no file"]}
ENDED = "worker 2 (pid 12): ended while preparing the configuration"


@pytest.mark.parametrize(
    ("worker", "problem"),
    [
        (PlayedWorker(BEGUN, {"result": FAILURE}), "no file"),
        (PlayedWorker(BEGUN, {"error": "OSError"}), "worker 2 (pid 12): OSError"),
        (PlayedWorker(BEGUN, None), ENDED),
    ],
    ids=["its problems", "its error", "its end"],
)
async def test_configuration_that_one_cannot_prepare_is_aborted(
    tmp_path: Path, worker: PlayedWorker, problem: str
) -> None:
    other = prepared()
    async with managed(tmp_path, other, worker) as harness:
        assert (await harness.reload()).problems == (problem,)
        assert harness.backends == ["users"]
    assert other.received == [{"op": "prepare", "args": OTHER}, None]
    assert "use" not in harness.operations


@pytest.mark.parametrize(
    "worker",
    [PlayedWorker(None), *(PlayedWorker(phase=each) for each in ("ended", "draining", "starting"))],
    ids=["ends", "has ended", "drains", "starts"],
)
async def test_worker_that_does_not_begin_is_not_waited_for(
    tmp_path: Path, worker: PlayedWorker
) -> None:
    async with managed(tmp_path, prepared(), worker) as harness:
        assert (await harness.reload()).code is None


async def test_worker_that_starts_meanwhile_prepares_the_configuration_too(tmp_path: Path) -> None:
    workers = [prepared(), prepared()]
    async with managed(tmp_path, *workers) as harness:
        harness.show_the_second_after_the_first()
        assert (await harness.reload()).code is None
    for each in workers:
        assert each.received == [{"op": "prepare", "args": OTHER}, COMMIT, None]


@pytest.mark.usefixtures("short_timeout")
async def test_worker_that_does_not_commit_does_not_fail_the_reload(tmp_path: Path) -> None:
    """The reload waits for it, and then the supervisor replaces it."""
    async with managed(tmp_path, prepared(), PlayedWorker(BEGUN, DONE)) as harness:
        begun = time.monotonic()
        assert (await harness.reload()).code is None
        assert time.monotonic() - begun >= 0.5


async def test_worker_that_does_not_prepare_in_two_minutes_fails_the_reload(tmp_path: Path) -> None:
    worker = PlayedWorker(BEGUN)
    async with managed(tmp_path, worker) as harness:
        clock = LoopClock()
        reload = asyncio.create_task(harness.manager.reload())
        await worker.asked.wait()
        clock.forward(121.0)
        assert (await reload).problems == ("a file, backend or key store did not open in 120 s",)


async def test_time_to_prepare_does_not_apply_to_the_commit(tmp_path: Path) -> None:
    """What the supervisor uses by then must not be reported as a failure."""
    async with managed(tmp_path, prepared()) as harness:
        clock = LoopClock()
        harness.may_use.clear()
        reload = asyncio.create_task(harness.manager.reload())
        while "use" not in harness.operations:
            await clock.advance(0.001)
        await clock.advance(121.0)
        harness.may_use.set()
        assert (await reload).code is None


@pytest.mark.parametrize(
    ("code", "done", "sent"), [(None, "commit", [COMMIT]), ("reload_failed", "abort", [])]
)
async def test_configuration_is_committed_or_aborted_as_the_supervisor_decides(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str | None,
    done: str,
    sent: list[Message],
) -> None:
    calls: list[str] = []

    async def abort() -> None:
        calls.append("abort")

    async def prepare(*_: object) -> Prepared:
        return Prepared(lambda: calls.append("commit"), abort)

    worker = prepared()
    async with managed(tmp_path, worker) as harness:
        monkeypatch.setattr(Keys, "prepare", prepare)
        harness.used = ReloadResult(5.0, code=code, problems=("changed since",))
        assert await harness.reload() == harness.used
        assert calls == [done]
        assert harness.backends == ["users" if code else "members"]
    assert worker.received == [{"op": "prepare", "args": OTHER}, *sent, None]


async def test_invalid_file_is_sent_to_none(tmp_path: Path) -> None:
    worker = prepared()
    async with managed(tmp_path, worker) as harness:
        assert (await harness.reload(f"{CONFIG}no_such: 1\n")).code == "invalid_configuration"
    assert worker.received == []


async def test_hangup_is_the_cause_of_a_reload(tmp_path: Path) -> None:
    """Without an admin listener, the manager has no keys."""
    async with managed(tmp_path, config=CONFIG.replace("admin: {port: 0}\n", "")) as harness:
        harness.manager._on_message({"op": "hangup"})  # noqa: SLF001 - a message of a worker
        await harness.reload()
        assert not harness.manager.ring.ids
        begun = [each for each in harness.sent if each["op"] == "reloading"]
        assert begun[0]["audited"] == {"trigger": "signal"}


async def test_stop_ends_a_reload_and_allows_no_other(tmp_path: Path) -> None:
    worker = PlayedWorker(BEGUN)
    async with managed(tmp_path, worker) as harness:
        reload = asyncio.create_task(harness.reload())
        await worker.asked.wait()
        harness.manager._on_message({"op": "stopping"})  # noqa: SLF001 - a message of a worker
        assert (await reload).problems == ("the service is stopping",)
        assert (await harness.reload()).problems == ("the service is stopping",)
        assert "use" not in harness.operations


def test_configuration_is_watched_only_once_the_keys_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the keys of the start would replace those of a reload that has ended earlier."""
    watched = []

    async def watch(*_: object) -> None:
        watched.append(True)

    async def prepare(*_: object) -> Prepared:
        await asyncio.sleep(0.01)
        raise StartError

    monkeypatch.setattr(Reloader, "watch", watch)
    monkeypatch.setattr(Keys, "prepare", prepare)
    with put_back(), ControlEnd() as control:
        assert run_manager(configuration(tmp_path, CONFIG), [], control.theirs) == 3
    assert not watched

"""One process from start to stop: signals, events, the lag; real ones are in test_drain."""

import asyncio
import io
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from support.fakes.clock_and_backends import LoopClock
from support.processes.process import eventually
from support.processes.service import Client, load_configuration, write_config
from tornado_idv.config.address import Address
from tornado_idv.files import FileSignature
from tornado_idv.interfaces.backend import Backend, BackendOptions
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.log_format import json_lines, text_lines
from tornado_idv.logs.handlers import FoldingHandler, LogOutput
from tornado_idv.logs.writer import LogWriter
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Query
from tornado_idv.service.events import Events
from tornado_idv.service.part import background
from tornado_idv.service.run import Signals, abort, measure_lag, run
from tornado_idv.service.service import Service
from tornado_idv.web.access_log import AccessLog, LoggedRequest, record_response
from tornado_idv.web.response import Result

CONFIG = """\
profile_sites: [https://profiles.example]
server: {port: 0, drain: {timeout: 10ms}}
backends: [{name: users, kind: yaml, path: users.yaml}]
"""
Serve = Callable[..., None]


@pytest.fixture
def access() -> list[str]:
    return []


@pytest.fixture
def serve(tmp_path: Path, access: list[str]) -> Iterator[Serve]:
    """Run the service over one fixture until it is stopped; other logs are `caplog`'s."""

    def start(announce: Callable[[Service], None]) -> None:
        current = load_configuration(write_config(tmp_path, CONFIG))
        logs = LogOutput(writer, AccessLog(access.append, json_lines), FoldingHandler(print))
        run(current, announce, logs)

    with closing(LogWriter(len, str)) as writer:
        yield start


def stop(_: Service) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_every_answer_up_to_the_stop_is_in_the_log(serve: Serve, access: list[str]) -> None:
    """And the lag of the event loop is measured meanwhile."""
    counters: list[Counters] = []

    def ask_and_stop(service: Service) -> None:
        counters.append(service.counters)
        counters[0].max_lag = -1.0
        assert Client(service.port).send("GET", "/", {"Host": "x"}).status == 404
        eventually(lambda: counters[0].max_lag >= 0)
        stop(service)

    with ThreadPoolExecutor(1) as thread:
        serve(lambda service: thread.submit(ask_and_stop, service))
    assert counters[0].max_lag >= 0
    assert "".join(access).count('"request"') == 1


def test_stop_does_not_wait_for_a_file_system_that_hangs(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    serves, hangs, goes_on, ended = (threading.Event() for _ in range(4))

    def find(path: Path) -> None:
        if path.name == "users.yaml" and serves.is_set() and not hangs.is_set():
            hangs.set()
            goes_on.wait(10)
            ended.set()

    def stop_when_it_hangs() -> None:
        serves.set()
        hangs.wait(10)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(FileSignature, "find", find)
    serve(lambda _: threading.Thread(target=stop_when_it_hangs).start())
    assert hangs.is_set()
    assert not ended.is_set()
    goes_on.set()


class Opening(Backend[BackendOptions]):
    """Is opened for as long as the test waits, and meanwhile the process gets a signal."""

    number: signal.Signals | None = signal.SIGTERM

    async def open(self) -> None:
        if self.number is None:
            raise asyncio.CancelledError
        os.kill(os.getpid(), self.number)
        await asyncio.wait_for(asyncio.get_running_loop().create_future(), 10)

    async def find(self, query: Query) -> None:
        """Never asked."""


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each backend is an `Opening`."""
    monkeypatch.setattr("tornado_idv.registry.installed_kinds", lambda _: Kinds({"yaml": Opening}))
    monkeypatch.setattr(
        "tornado_idv.service.directories.installed_kinds", lambda _: Kinds({"yaml": Opening})
    )


def test_stop_during_the_start_ends_the_start(
    serve: Serve, opening: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        serve(lambda _: None)
    assert "stopped during the start" in caplog.text


def test_a_start_that_cancels_itself_is_no_stop(
    serve: Serve, opening: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Opening, "number", None)
    with pytest.raises(asyncio.CancelledError):
        serve(stop)


async def test_longest_lag_is_counted_and_a_blocked_loop_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counters, clock = Counters(), LoopClock()
    clock.stop()
    async with background(measure_lag(counters)):
        await clock.advance(0.0)  # the task starts
        await clock.advance(0.4)
        assert counters.max_lag == pytest.approx(0.3)
        await clock.advance(1.09)
        await clock.advance(0.1)  # in time
        assert counters.max_lag == pytest.approx(0.99)
        assert not caplog.records
        await clock.advance(3.1)
        await clock.advance(0.1)  # in time
        assert counters.take_max_lag() == pytest.approx(3.0)
        await clock.advance(0.1)
        assert counters.max_lag < 0.01
    assert caplog.messages == ["event loop was blocked for 3.0 s"]
    await clock.advance(10.0)
    assert counters.max_lag < 0.01  # nothing is measured after the end


def test_port_of_the_command_line_leaves_the_host(tmp_path: Path) -> None:
    text = CONFIG.replace("port: 0", "host: '::1'")
    current = load_configuration(write_config(tmp_path, text))
    current.file = replace(current.file, port=7)
    assert current.addresses == (Address("::1", 7),)


def test_each_listener_gets_each_event_and_the_shortest_interval_counts() -> None:
    listeners = [Mock(interval=each) for each in (None, 2.0, 1.0)]
    events = Events(listeners)
    events.send("ready")
    events.send("stopping")
    assert [each.mock_calls for each in listeners] == [[call("ready"), call("stopping")]] * 3
    assert (events.interval, Events(listeners[:1]).interval) == (1.0, None)


async def test_second_signal_aborts_a_start_that_does_not_end() -> None:
    aborted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    Signals(asyncio.current_task(), aborted.set_result)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.get_running_loop().create_future(), 10)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(aborted, 10) == signal.SIGTERM


async def handled_so_far() -> None:
    """Wait until the signals that came before are handled: they are in their order."""
    handled = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, handled.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(handled.wait(), 10)
    loop.remove_signal_handler(signal.SIGUSR1)


@pytest.mark.parametrize("phase", ["before the loop", "start", "running"])
async def test_hangup_reloads_once_the_service_runs(phase: str) -> None:
    """Also one that arrived before; it neither ends the process nor stops the service."""
    reloads = asyncio.Semaphore(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    if phase == "before the loop":
        signal.raise_signal(signal.SIGHUP)
    signals = Signals(asyncio.current_task(), lambda _: None)
    if phase == "start":
        signal.raise_signal(signal.SIGHUP)
    await handled_so_far()
    assert reloads.locked()
    signals.ready(reloads.release)
    if phase == "running":
        os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.wait_for(reloads.acquire(), 10)
    assert reloads.locked()
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.wait_for(reloads.acquire(), 10)
    assert not signals.stop.is_set()


async def test_an_abort_writes_the_log_and_exits_with_the_signal_s_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.BytesIO()
    codes: list[int] = []
    writer = LogWriter(written.write, str)
    access = AccessLog(writer.put, text_lines)
    request = LoggedRequest("a-1", None, "-", "-", "::1")
    record_response(Counters(), access, request, Result(400, b"{}"), 0.0)
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr(logging.getLogger("tornado_idv.service.run"), "warning", writer.put)
    abort(LogOutput(writer, access, FoldingHandler(print)), signal.SIGTERM)
    assert codes == [143]
    request_line, message = written.getvalue().split(b"\n")
    assert b"request_id=a-1" in request_line
    assert message.startswith(b"second signal")

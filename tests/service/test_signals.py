"""What signals do in each phase; what a real process makes of them is in test_drain."""

import asyncio
import io
import logging
import os
import signal

import pytest

from tornado_idv.log_format import text_lines
from tornado_idv.logs.handlers import FoldingHandler, LogOutput
from tornado_idv.logs.writer import LogWriter
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.run import Signals, abort
from tornado_idv.web.access_log import AccessLog, LoggedRequest, record_response
from tornado_idv.web.response import Result


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

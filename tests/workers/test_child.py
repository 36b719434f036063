"""What a supervisor does with the socket to a process, and with the signals of both."""

import errno
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tornado_idv.workers.channel import Message, encode
from tornado_idv.workers.child import Child, SignalQueue, fork

# CPython 3.12 warns if the process that runs the tests has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def test_process_that_closes_with_a_message_unread_is_not_killed() -> None:
    """It is about to end by itself; what it has sent before is received."""

    def run(sock: socket.socket) -> int:
        select.select([sock], [], [])
        sock.sendall(encode({"op": "report"}))
        sock.close()
        signal.pause()
        return 0

    child = fork("worker 1", run, 0.0)
    child.send("drain")
    messages: list[Message] = []
    while not child.disconnected:
        messages += child.receive(1.0)
    assert messages == [{"op": "report"}]
    assert child.receive(1.0) == []
    os.kill(child.pid, signal.SIGUSR1)
    assert ended(child) == -signal.SIGUSR1, "another signal came before"


def ended(child: Child) -> int:
    """Return the exit code, once there is one."""
    while (code := child.reap()) is None:
        time.sleep(0.001)
    child.sock.close()
    return code


def test_forked_process_has_the_other_end_and_an_exit_code() -> None:
    def run(sock: socket.socket) -> int:
        message = encode({"op": "report", "report": os.getpid()})
        sock.sendall(message[:5])
        signal.raise_signal(signal.SIGSTOP)
        sock.sendall(message[5:])
        return 7 if len(sock.makefile("rb").readline()) > 1_000_000 else 1

    child = fork("worker 1", run, 5.0)
    assert str(child) == f"worker 1 (pid {child.pid})"
    assert (child.heard, child.phase) == (5.0, "starting")
    assert child.reap() is None
    os.waitpid(child.pid, os.WUNTRACED)
    messages = child.receive(6.0)  # does not wait
    child.send("use", content="x" * 1_000_000)  # more than the socket takes
    os.kill(child.pid, signal.SIGCONT)
    while child.unsent:
        child.flush()
    child.sock.shutdown(socket.SHUT_WR)
    while not messages:
        messages = child.receive(6.0)
    assert messages == [{"op": "report", "report": child.pid}]
    assert child.heard == 6.0
    assert ended(child) == 7


def test_forked_process_that_fails_exits_with_70(capfd: pytest.CaptureFixture[str]) -> None:
    def run(_: socket.socket) -> int:
        logging.getLogger().handlers = [logging.StreamHandler()]
        raise ValueError("canary of 4000")

    assert ended(fork("worker 1", run, 0.0)) == 70
    text = capfd.readouterr().err
    assert "unhandled exception" in text
    assert "ValueError" in text


def test_ended_process_leaves_no_zombie() -> None:
    child = fork("worker 1", lambda sock: len(sock.recv(1)), 0.0)
    child.end()
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)
    assert child.fileno() == -1


def test_failed_fork_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fail)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="temporarily unavailable"):
        fork("worker 1", lambda _: 0, 0.0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.fixture
def queue() -> Iterator[SignalQueue]:
    with closing(SignalQueue(NUMBERS)) as queue:
        yield queue


def is_readable(queue: SignalQueue) -> bool:
    return bool(select.select([queue], [], [], 0)[0])


def test_signals_are_queued_in_their_order(queue: SignalQueue) -> None:
    assert (queue.read(), is_readable(queue)) == ([], False)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
        signal.raise_signal(number)
    assert is_readable(queue)
    assert queue.read() == [signal.SIGHUP, signal.SIGTERM, signal.SIGHUP]
    assert (queue.read(), is_readable(queue)) == ([], False)
    with queue.blocked():
        signal.raise_signal(signal.SIGHUP)
        assert queue.read() == []
    assert queue.read() == [signal.SIGHUP]


def test_more_signals_than_can_be_queued_are_no_error(
    queue: SignalQueue, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2000):
        signal.raise_signal(signal.SIGHUP)
    while queue.read():
        pass
    signal.raise_signal(signal.SIGTERM)
    assert queue.read() == [signal.SIGTERM]
    assert capfd.readouterr().err == ""


def test_signals_that_the_parent_has_blocked_are_received() -> None:
    """Also one from before the queue was made."""
    signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    signal.raise_signal(signal.SIGHUP)
    with closing(SignalQueue(NUMBERS)) as queue:
        signal.raise_signal(signal.SIGTERM)
        assert queue.read() == [signal.SIGHUP, signal.SIGTERM]
    assert signal.set_wakeup_fd(-1) == -1, "no later signal is written to the closed queue"


def exit_code(queue: SignalQueue, run: Callable[[], int]) -> int:
    """Return the exit code of a process that has left the queue; it ignores SIGINT."""

    def leave_and_run(_: socket.socket) -> int:
        queue.leave((signal.SIGINT,))
        return run()

    with queue.blocked():
        child = fork("worker 1", leave_and_run, 0.0)
    return ended(child)


def test_forked_process_ignores_some_signals_and_is_ended_by_the_others(queue: SignalQueue) -> None:
    def run() -> int:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        return 0

    assert exit_code(queue, run) == -signal.SIGTERM


def test_signals_of_a_forked_process_are_not_those_of_its_supervisor(queue: SignalQueue) -> None:
    def run() -> int:
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.raise_signal(signal.SIGTERM)
        is_blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(NUMBERS)
        return 7 if queue.fileno() == -1 and not is_blocked else 1

    assert exit_code(queue, run) == 7
    assert queue.read() == []

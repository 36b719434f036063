"""Signals of a process without an event loop, and of those that it forks."""

import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tornado_idv.workers.child import SignalQueue, fork

# CPython 3.12 warns if the process that runs the tests has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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
    with closing(child.sock):
        while (code := child.reap()) is None:
            time.sleep(0.001)
    return code


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

"""What a supervisor does with the socket to a process."""

import errno
import logging
import os
import select
import signal
import socket
import time
from pathlib import Path

import pytest

from tornado_idv.workers.channel import Message, encode
from tornado_idv.workers.child import Child, fork

# CPython 3.12 warns if the process that runs the tests has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


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

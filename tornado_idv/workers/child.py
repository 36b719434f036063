"""The supervisor's view of forked processes, the slots that restart them, and its signals."""

import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tornado_idv.admin.report import Phase
from tornado_idv.errors import StartError, format_traceback
from tornado_idv.workers.channel import CRASHED, Message, State, encode

_log = logging.getLogger(__name__)
_STABLE_AFTER = 1.0
"""If a process has served for this time, in seconds, its restart has no back-off."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
"""The first and the longest back-off before a restart, in seconds."""


@dataclass(eq=False, repr=False)
class Child:
    """A forked process, with a socket to it and its last messages. Times are monotonic seconds.

    The process is *starting* until it reports that it serves, and *draining* after the order to
    stop.
    """

    name: str
    pid: int
    sock: socket.socket
    heard: float
    state: State = field(default_factory=State)
    """The last reported state."""
    phase: Phase = "starting"
    started_at: float = field(default_factory=time.time)
    """The Unix time of the fork."""
    ready_at: float | None = None
    kill_at: float = math.inf
    """If a stopping process still runs at this time, it is killed."""
    disconnected: bool = False
    """True after the process has closed the connection. A process does this before it ends."""
    unsent: bytearray = field(default_factory=bytearray)
    """Messages that `flush` sends when the socket is writable."""
    _received: bytes = b""

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    def fileno(self) -> int:
        return self.sock.fileno()

    def overview(self, now: float) -> Message:
        """Return the state of the process for the manager."""
        return {
            "name": self.name,
            "pid": self.pid,
            "phase": self.phase,
            "started_at": self.started_at,
            # After a kill, `heard` is in the future: it gives the child time to end.
            "heartbeat_age": max(0.0, round(now - self.heard, 1)),
            "requests": 0 if self.state.report is None else self.state.report["requests"],
            "report": self.state.report,
            "address": self.state.address,
        }

    def send(self, op: str, **args: Any) -> None:
        """Send a message now, or with the next `flush`."""
        self.unsent += encode({"op": op, **args})
        self.flush()

    def flush(self) -> None:
        """Send pending messages. Errors are ignored: `reap` notices the end of the process."""
        with suppress(OSError):
            while self.unsent:
                del self.unsent[: self.sock.send(self.unsent)]

    def receive(self, now: float) -> list[Message]:
        """Return the messages received since the last call."""
        # If the process has closed with unread messages from here, the next call finds the end.
        with suppress(OSError):
            while data := self.sock.recv(256 * 1024):
                self.heard = now
                self._received += data
            self.disconnected = True
        *lines, self._received = self._received.split(b"\n")
        return [msgspec.json.decode(line, type=Message) for line in lines]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)  # until `reap`, an ended process has its id

    def reap(self) -> int | None:
        """Return the exit code, or ``None`` if the process still runs.

        After a signal the exit code is minus the signal's number.
        """
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def end(self) -> None:
        """Kill the process, and wait for its end."""
        self.kill()
        os.waitpid(self.pid, 0)
        self.sock.close()


def fork(name: str, run: Callable[[socket.socket], int], now: float) -> Child:
    """Fork a process that calls ``run`` with its socket, and exits with the result as exit code.

    Raises `OSError` if the system has no process, memory or descriptor left.
    """
    ours, theirs = socket.socketpair()
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if not pid:
        ours.close()
        try:
            os._exit(run(theirs))
        except BaseException as error:  # noqa: BLE001 - no exception may reach the supervisor's code
            _log.critical("unhandled exception:\n%s", format_traceback(error))
            os._exit(CRASHED)
    theirs.close()
    ours.settimeout(0)
    return Child(name, pid, ours, now)


class SignalQueue:
    """A queue of signals for a process without an event loop. `select.poll` can wait for it."""

    def __init__(self, numbers: tuple[signal.Signals, ...]) -> None:
        self._numbers = numbers
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def fileno(self) -> int:
        return self._reader.fileno()

    def read(self) -> list[int]:
        """Return the numbers of the signals since the last call."""
        with suppress(BlockingIOError):
            return list(self._reader.recv(4096))
        return []

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Block signals during a fork.

        Otherwise, before the call of `leave`, a signal to the child would be in the parent's queue.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._numbers)

    def leave(self, ignored: tuple[signal.Signals, ...]) -> None:
        """Detach a forked process from the queue. The process ignores the signals ``ignored``."""
        self.close()
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._numbers)

    def close(self) -> None:
        """Restore the earlier signal handlers."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()


@dataclass
class Slot:
    """The place of one process: its function ``run``, and the current process ``child``."""

    name: str
    run: Callable[[socket.socket], int]
    child: Child | None = None
    start_at: float = 0.0
    exits_in_a_row: int = 0
    """Number of exits since the last process that served for at least a second."""
    error: StartError | None = None
    """The error of the last failed start."""

    def on_exit(self, child: Child, reason: str, now: float) -> float:
        """Schedule a restart after an exit. Return the seconds until the restart.

        The first restart is immediate, further ones have an exponential back-off. If the process
        has served for at least a second, its restart counts as the first.
        """
        self.child = None
        if child.ready_at is None and self.error is None:
            self.error = StartError(f"{child} ended during the start: {reason}")
        if child.ready_at is not None and now - child.ready_at >= _STABLE_AFTER:
            self.exits_in_a_row = 0
        pause = min(_FIRST_PAUSE * 2.0 ** (self.exits_in_a_row - 1), _LONGEST_PAUSE)
        self.exits_in_a_row += 1
        self.start_at = now + (pause if self.exits_in_a_row > 1 else 0.0)
        return self.start_at - now

"""A forked process, as its supervisor sees it, and its place, whichever process has it."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tornado_idv.admin.report import Phase
from tornado_idv.errors import StartError, format_traceback
from tornado_idv.workers.channel import CRASHED, Message, State, encode

_log = logging.getLogger(__name__)
_READ_SIZE = 256 * 1024
_STABLE_AFTER = 1.0
"""Seconds: a process that served for so long did not fail at its start."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0


@dataclass(eq=False, repr=False)
class Child:
    """A process with a socket to it, and what it last sent; times are monotonic seconds.

    It is *starting* until it reports that it serves, and *draining* once it was asked to stop.
    """

    name: str
    pid: int
    sock: socket.socket
    heard: float
    state: State = field(default_factory=State)
    """As last reported."""
    phase: Phase = "starting"
    started_at: float = field(default_factory=time.time)
    """As a Unix time."""
    ready_at: float | None = None
    kill_at: float = math.inf
    """When it is killed unless it has ended: it was asked to stop."""
    disconnected: bool = False
    """Whether it has closed its end, as it does before it ends."""
    unsent: bytearray = field(default_factory=bytearray)
    """Messages for `flush`, once the socket can be written."""
    _received: bytes = b""

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    def fileno(self) -> int:
        return self.sock.fileno()

    def overview(self, now: float) -> Message:
        """Return its state for the manager."""
        return {
            "name": self.name,
            "pid": self.pid,
            "phase": self.phase,
            "started_at": self.started_at,
            # A killed child is given time to end, by a heartbeat in the future.
            "heartbeat_age": max(0.0, round(now - self.heard, 1)),
            "requests": 0 if self.state.report is None else self.state.report["requests"],
            "report": self.state.report,
            "address": self.state.address,
        }

    def send(self, op: str, **args: Any) -> None:
        """Send a message, now or by `flush`."""
        self.unsent += encode({"op": op, **args})
        self.flush()

    def flush(self) -> None:
        """Send what is left; a process that has ended is noticed elsewhere."""
        try:
            while self.unsent:
                del self.unsent[: self.sock.send(self.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()

    def receive(self, now: float) -> list[Message]:
        """Return the messages that it has sent."""
        try:
            while data := self.sock.recv(_READ_SIZE):
                self.heard = now
                self._received += data
            self.disconnected = True
        except BlockingIOError:
            pass
        except OSError:  # it has closed its end with a message from here unread
            self.disconnected = True
        *lines, self._received = self._received.split(b"\n")
        return [msgspec.json.decode(line, type=Message) for line in lines]

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int | None:
        """Return its exit code if it has ended: minus the signal's number if one ended it."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def end(self) -> None:
        """End it at once, and wait for that."""
        self.kill()
        os.waitpid(self.pid, 0)
        self.close()

    def close(self) -> None:
        """Close the socket to it."""
        self.sock.close()


def fork(name: str, run: Callable[[socket.socket], int], now: float) -> Child:
    """Fork a process that runs ``run`` with its end of a socket pair, and exits with its result.

    Raises `OSError` where the system has no process, memory or descriptor left.
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
        except BaseException as error:  # noqa: BLE001 - nothing may leave by the supervisor's stack
            _log.critical("unhandled exception:\n%s", format_traceback(error))
            os._exit(CRASHED)
    theirs.close()
    ours.settimeout(0)
    return Child(name, pid, ours, now)


@dataclass
class Slot:
    """The place of a process: ``run`` is what it does; ``child`` the process, if there is one."""

    name: str
    run: Callable[[socket.socket], int]
    child: Child | None = None
    start_at: float = 0.0
    exits_in_a_row: int = 0
    """The number of processes that ended since the last one ran for at least a second."""
    error: StartError | None = None
    """Why the last of them failed."""

    def on_exit(self, child: Child, reason: str, now: float) -> float:
        """The process has ended; return in how many seconds another one is started.

        At once after the first exit, then with a back-off that doubles; a run of at least a
        second resets it.
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

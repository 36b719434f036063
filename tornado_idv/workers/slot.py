"""The place of one process, whichever process has it at a time."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from tornado_idv.errors import StartError
from tornado_idv.workers.child import Child

_STABLE_AFTER = 1.0
"""Seconds: a process that served for so long did not fail at its start."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0


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

    @property
    def is_ready(self) -> bool:
        """Return whether the process serves, and was not asked to stop."""
        return self.child is not None and self.child.phase == "ready"

    def on_ready(self) -> None:
        """The process serves."""
        self.error = None

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

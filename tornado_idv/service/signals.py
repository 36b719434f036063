"""Signals to a process with an event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

KILLED_BY = 128
"""What a shell adds to the number of the signal that ended a process, for its exit code."""
_STOP = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Handles SIGTERM, SIGINT and SIGHUP, from creation until the loop is closed.

    The first SIGTERM or SIGINT cancels ``task`` while the service starts, and sets ``stop``
    from `ready` on. The second one calls ``abort`` with its number, in every phase: what
    happens then must not depend on anything that may hang. SIGHUP is handled from `ready` on.
    """

    def __init__(self, task: asyncio.Task[Any] | None, abort: Callable[[int], object]) -> None:
        self.stop = asyncio.Event()
        self._starting = task
        self._abort = abort
        loop = asyncio.get_running_loop()
        for number in _STOP:
            loop.add_signal_handler(number, self._on_stop, number)

    def ready(self, on_hangup: Callable[[], object]) -> None:
        """The start is over: from here on a stop is a drain, and SIGHUP calls ``on_hangup``."""
        self._starting = None
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])

    def _on_stop(self, number: int) -> None:
        if self.stop.is_set():
            self._abort(number)
            return
        self.stop.set()
        if self._starting is not None:
            self._starting.cancel()

"""Logs where the event loop is blocked, and measures its delay.

A timer of the loop records a heartbeat; a daemon thread logs the stack of the loop's thread when
there was none for a second.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tornado_idv.metrics.counters import Counters

_log = logging.getLogger(__name__)
_BEAT = 0.1
_LIMIT = 1.0
"""Seconds without a heartbeat after which the loop counts as blocked."""
_INTERVAL = 0.25
_LATE = 0.75
"""A check so many seconds after the last one says nothing: the whole process was stopped, or code
that holds the GIL kept this thread waiting, too."""


class Watchdog:
    """Compares the time of the last heartbeat with ``timer``, which gives seconds.

    ``frame`` returns what the watched thread executes. `beat` is called on the event loop,
    `check` by the watching thread.
    """

    def __init__(
        self,
        frame: Callable[[], FrameType],
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._frame = frame
        self._timer = timer
        self._beat_at = self._checked_at = timer()
        self._reported: float | None = None

    def beat(self) -> None:
        """Record a heartbeat; log how long the loop was blocked, if it was."""
        now = self._timer()
        blocked = now - self._beat_at
        self._beat_at = now
        if blocked > _LIMIT:
            _log.warning("event loop no longer blocked; it was for %.1f s", blocked)

    def check(self) -> None:
        """Log the stack, once per block."""
        now, beat_at = self._timer(), self._beat_at
        was_late, self._checked_at = now - self._checked_at > _LATE, now
        if now - beat_at >= _LIMIT and self._reported != beat_at and not was_late:
            self._reported = beat_at
            # Files, functions and lines of code; no values of variables.
            stack = "".join(traceback.format_stack(self._frame())).rstrip()
            _log.warning("event loop blocked for more than 1 s, in:\n%s", stack)


@contextmanager
def watched_loop(counters: Counters) -> Iterator[None]:
    """Watch the running event loop within, and count how late it is.

    To be entered in each process, after a fork.
    """
    loop, thread_id, stop = asyncio.get_running_loop(), threading.get_ident(), threading.Event()
    # Underscored, but documented for this purpose.
    watchdog = Watchdog(lambda: sys._current_frames()[thread_id])  # noqa: SLF001
    timer: asyncio.TimerHandle

    def beat() -> None:
        nonlocal timer
        counters.max_lag = max(counters.max_lag, loop.time() - timer.when())
        watchdog.beat()
        timer = loop.call_later(_BEAT, beat)

    def watch() -> None:
        while not stop.wait(_INTERVAL):
            watchdog.check()

    timer = loop.call_later(_BEAT, beat)
    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        timer.cancel()
        stop.set()
        thread.join(_LIMIT)

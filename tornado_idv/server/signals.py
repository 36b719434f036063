"""What signals do to a running service."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)
_STOP = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Handles SIGTERM, SIGINT and SIGHUP, from creation until the loop is closed.

    The first SIGTERM or SIGINT cancels ``task`` while the service starts, and sets ``stop``
    from `ready` on. The second one calls ``abort`` with its number, in every phase: what
    happens then must not depend on anything that may hang. SIGHUP does nothing but log.
    """

    def __init__(self, task: asyncio.Task[Any] | None, abort: Callable[[int], object]) -> None:
        self.stop = asyncio.Event()
        self._starting = task
        self._abort = abort
        loop = asyncio.get_running_loop()
        for number in _STOP:
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, _on_hangup)

    def ready(self) -> None:
        """The start is over: from here on a stop is a drain."""
        self._starting = None

    def _on_stop(self, number: int) -> None:
        if self.stop.is_set():
            self._abort(number)
        self.stop.set()
        if self._starting is not None:
            self._starting.cancel()


def _on_hangup() -> None:
    _log.warning("SIGHUP ignored: reload is not supported; restart to apply changes")

"""Handlers of signals to a running service."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOP = (signal.SIGTERM, signal.SIGINT)


class _HeldHangup:
    """A signal handler that remembers that it was called."""

    called = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.called = True


@contextmanager
def hold_hangups() -> Iterator[None]:
    """Hold a SIGHUP, which would end the process, until `Signals` handles it."""
    before = signal.signal(signal.SIGHUP, _HeldHangup())
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def was_held(handler: object) -> bool:
    """Return whether this handler of SIGHUP is that of `hold_hangups`, and was called."""
    return isinstance(handler, _HeldHangup) and handler.called


class Signals:
    """Handles SIGTERM, SIGINT and SIGHUP, from creation until the loop is closed.

    The first SIGTERM or SIGINT cancels ``task`` while the service starts, and sets ``stop``
    from `ready` on. The second one calls ``abort`` with its number, in every phase: what
    happens then must not depend on anything that may hang. SIGHUP during the start is kept
    until `ready`, also one that `hold_hangups` has held before.
    """

    def __init__(self, task: asyncio.Task[Any] | None, abort: Callable[[int], object]) -> None:
        self.stop = asyncio.Event()
        self._starting = task
        self._abort = abort
        loop = asyncio.get_running_loop()
        for number in _STOP:
            loop.add_signal_handler(number, self._on_stop, number)
        self._hangup = asyncio.Event()
        before = signal.getsignal(signal.SIGHUP)
        loop.add_signal_handler(signal.SIGHUP, self._hangup.set)
        if was_held(before):
            self._hangup.set()

    def ready(self, on_hangup: Callable[[], object]) -> None:
        """The start is over: from here on a stop is a drain, and SIGHUP calls ``on_hangup``."""
        self._starting = None
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
        if self._hangup.is_set():
            on_hangup()

    def _on_stop(self, number: int) -> None:
        if self.stop.is_set():
            self._abort(number)
            return
        self.stop.set()
        if self._starting is not None:
            self._starting.cancel()

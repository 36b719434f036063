"""Signals to a running service: in a process with an event loop, and in one without."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

KILLED_BY = 128
"""What a shell adds to the number of the signal that ended a process, for its exit code."""
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


def _was_held(handler: object) -> bool:
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
        if _was_held(before):
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


class SignalQueue:
    """The signals to a process without an event loop; `select.poll` returns when one arrives."""

    def __init__(self, numbers: tuple[signal.Signals, ...]) -> None:
        self._numbers = numbers
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
        self.hangup_was_held = _was_held(self._handlers.get(signal.SIGHUP))
        """Whether SIGHUP came before, while `hold_hangups` held it."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def fileno(self) -> int:
        return self._reader.fileno()

    def read(self) -> list[int]:
        """Return the numbers of the signals since the last call."""
        try:
            return list(self._reader.recv(4096))
        except BlockingIOError:
            return []

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Let signals wait: one that a forked process gets before `leave` is not ours."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._numbers)

    def leave(self, ignored: tuple[signal.Signals, ...]) -> None:
        """Stop using the queue in a forked process, which ignores some of the signals."""
        signal.set_wakeup_fd(-1)
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        self._close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._numbers)

    def close(self) -> None:
        """Restore the handlers of before."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._close()

    def _close(self) -> None:
        self._reader.close()
        self._writer.close()

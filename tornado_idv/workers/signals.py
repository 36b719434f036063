"""Signals to a running service: in a process with an event loop, and in one without."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_log = logging.getLogger(__name__)

KILLED_BY = 128
"""What a shell adds to the number of the signal that ended a process, for its exit code."""
_STOP = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def hold_hangups() -> Iterator[None]:
    """Block SIGHUP, which would end the process, until `Signals` or `SignalQueue` handles it.

    To be entered before a thread is started, which then blocks it, too.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        if signal.SIGHUP in signal.sigpending():  # nothing has handled it
            signal.sigwait([signal.SIGHUP])
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def stop_at_once() -> Iterator[None]:
    """End the process with exit code 0 at SIGTERM or SIGINT, while it only prepares to serve."""

    def stop(*_: object) -> NoReturn:
        _log.info("stopped during the start")
        sys.exit()

    before = {number: signal.signal(number, stop) for number in _STOP}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


class SignalQueue:
    """The signals to a process without an event loop; `select.poll` returns when one arrives."""

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
        self.close()
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._numbers)

    def close(self) -> None:
        """Restore the handlers of before."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()

"""Signals of a process that has no event loop."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tornado_idv.workers.signals import was_held


class SignalQueue:
    """The signals that have arrived, which its descriptor makes a `select.poll` return for."""

    def __init__(self, numbers: tuple[signal.Signals, ...]) -> None:
        self._numbers = numbers
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)
        self._handlers = {number: signal.signal(number, _wake) for number in numbers}
        self.hangup_was_held = was_held(self._handlers.get(signal.SIGHUP))
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


def _wake(*_: object) -> None:
    """Do nothing: the number is in the queue."""

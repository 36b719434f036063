"""Signals for a process without an event loop."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager


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
        try:
            return list(self._reader.recv(4096))
        except BlockingIOError:
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

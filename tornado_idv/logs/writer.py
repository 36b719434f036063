"""Log text on its way to standard error, written by a thread of its own.

A write to a pipe blocks when its reader stalls. On the event loop that would stop every
response, and the signal that ends the process as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

_CAPACITY = 8 * 1024 * 1024
"""Characters that wait to be written, at most: about 30,000 lines of the access log."""
_FLUSH_TIMEOUT = 1.0
_TICK = 1.0
"""Seconds between two calls of ``on_tick``, at most, while the reader takes what is written."""


class LogWriter:
    """A bounded buffer of log lines, and the daemon thread that writes them.

    ``write`` takes bytes, may block, and returns how many it wrote, as `os.write` does. Lines
    for which there is no room, or which cannot be written, are dropped and counted in
    ``dropped``; once lines are written again, ``describe_loss`` gives a line with how many were
    dropped since the last such line. The thread calls ``on_tick`` now and then.
    """

    def __init__(
        self,
        write: Callable[[memoryview], int],
        describe_loss: Callable[[int], str],
        *,
        capacity: int = _CAPACITY,
    ) -> None:
        self.dropped = 0
        self.on_tick: Callable[[], object] = lambda: None
        self._described = 0
        self._write = write
        self._describe_loss = describe_loss
        self._capacity = capacity
        self._waiting: list[str] = []
        self._unwritten = 0
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="log writer", daemon=True).start()

    def put(self, text: str) -> None:
        """Take some lines to be written soon; never blocks."""
        with self._changed:
            if self._closed or self._unwritten + len(text) > self._capacity:
                self.dropped += text.count("\n")
                return
            self._waiting.append(text)
            self._unwritten += len(text)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, for a second at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unwritten, _FLUSH_TIMEOUT)

    def close(self) -> None:
        """Take no more lines, and flush."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.flush()

    def _run(self) -> None:
        while not self._closed or self._waiting:
            with suppress(Exception):  # a log of it would pass the same code again
                self.on_tick()
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed, _TICK)
                text, self._waiting = "".join(self._waiting), []
            if text and self._write_out(text):
                dropped = self.dropped
                if dropped != self._described and self._write_out(
                    self._describe_loss(dropped - self._described)
                ):
                    self._described = dropped
            with self._changed:
                self._unwritten -= len(text)
                self._changed.notify_all()

    def _write_out(self, text: str) -> bool:
        """Write the text; what cannot be written counts as dropped."""
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        try:
            while data:
                data = data[self._write(data) :]
        except OSError:
            with self._changed:
                self.dropped += bytes(data).count(b"\n")
            return False
        return True

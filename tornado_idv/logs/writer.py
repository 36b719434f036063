"""A thread that writes log lines to standard error.

A write to a pipe blocks if the reader stalls. On the event loop, this would block all responses,
and the handling of signals as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

_CAPACITY = 8 * 1024 * 1024
"""Capacity of the buffer in characters: about 30,000 lines of the access log."""
_FLUSH_TIMEOUT = 1.0
_TICK = 1.0
"""Maximum time between calls of ``on_tick`` in seconds, unless a write blocks."""


class LogWriter:
    """A bounded buffer of log lines, and a daemon thread to write them.

    ``write`` takes bytes, may block, and returns the number of written bytes, as `os.write` does.
    If the buffer is full or a write fails, lines are dropped. ``dropped`` is their number. When
    writing works again, ``describe_loss`` gets the number of lines dropped since its last report,
    and returns a line to write. The thread calls ``on_tick`` regularly.
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
        self._missing = b""  # the line break, after a write that failed within a line
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="log writer", daemon=True).start()

    def put(self, text: str) -> None:
        """Add lines to the buffer. Never blocks."""
        with self._changed:
            if self._closed or self._unwritten + len(text) > self._capacity:
                self.dropped += text.count("\n")
                return
            self._waiting.append(text)
            self._unwritten += len(text)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait up to 1 s until all lines are written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unwritten, _FLUSH_TIMEOUT)

    def close(self) -> None:
        """Accept no more lines, and flush."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.flush()

    def _run(self) -> None:
        while not self._closed or self._waiting:
            with suppress(Exception):  # logging it would run this code again
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
        """Write the text. After an error, count the rest as dropped."""
        data = memoryview(self._missing + text.encode("utf-8", "backslashreplace"))
        try:
            while data:
                if count := self._write(data):
                    self._missing = b"" if data[count - 1] == ord("\n") else b"\n"
                data = data[count:]
        except OSError:
            with self._changed:
                self.dropped += bytes(data).lstrip(b"\n").count(b"\n")
            return False
        return True

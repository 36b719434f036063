"""A thread that writes log lines to standard error.

A write to a pipe blocks if the reader stalls. On the event loop, this would block all responses,
and the handling of signals as well.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

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
        self, write: Callable[[memoryview], int], describe_loss: Callable[[int], str]
    ) -> None:
        self.dropped = 0
        self.on_tick: Callable[[], object] = lambda: None
        self._described = 0
        self._write = write
        self._describe_loss = describe_loss
        self._waiting: SimpleQueue[str] = SimpleQueue()
        self._unwritten = 0
        self._closed = False
        self._missing = b""  # the line break, after a write that failed within a line
        # Held without calls: a finalizer that logs could run in one, and wait for another thread.
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="log writer", daemon=True).start()

    def put(self, text: str) -> None:
        """Add lines to the buffer. Never blocks."""
        size, lines = len(text), text.count("\n")
        with self._lock:
            fits = not self._closed and self._unwritten + size <= _CAPACITY
            self._unwritten += size if fits else 0
            self.dropped += 0 if fits else lines
        if fits:
            self._waiting.put(text)

    def flush(self) -> None:
        """Wait up to 1 s until all lines are written."""
        until = time.monotonic() + _FLUSH_TIMEOUT
        while self._unwritten and time.monotonic() < until:
            time.sleep(0.002)

    def close(self) -> None:
        """Accept no more lines, and flush."""
        with self._lock:
            self._closed = True
        self._waiting.put("")  # wakes the thread
        self.flush()

    def _run(self) -> None:
        while not self._closed or self._unwritten:
            with suppress(Exception):  # logging it would run this code again
                self.on_tick()
            texts = []
            with suppress(Empty):
                texts.append(self._waiting.get(timeout=_TICK))
                while True:
                    texts.append(self._waiting.get_nowait())
            text = "".join(texts)
            is_written = text and self._write_out(text)
            lost = self.dropped - self._described
            if is_written and lost and self._write_out(self._describe_loss(lost)):
                self._described += lost
            size = len(text)
            with self._lock:
                self._unwritten -= size

    def _write_out(self, text: str) -> bool:
        """Write the text. After an error, count the rest as dropped."""
        data = memoryview(self._missing + text.encode("utf-8", "backslashreplace"))
        try:
            while data:
                if count := self._write(data):
                    self._missing = b"" if data[count - 1] == ord("\n") else b"\n"
                data = data[count:]
        except OSError:
            lines = bytes(data).lstrip(b"\n").count(b"\n")
            with self._lock:
                self.dropped += lines
            return False
        return True

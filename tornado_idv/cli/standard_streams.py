"""The standard streams of a command. At exit, nothing is left in their buffers."""

import errno
import os
import select
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any

import click

_STDOUT = 1


class OutputError(Exception):
    """Standard output cannot be written. The message is the reason."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}")
        # Closed by the reader, for example by `head`: this is not reported.
        self.is_closed = error.errno in (errno.EPIPE, errno.EBADF)


class _Writer(FileIO):
    """Writes to standard output or standard error, and discards everything after a failure.

    Only the first failure of standard output raises `OutputError`. Otherwise Python would write
    the rest of the buffer at exit, fail again, and exit with code 120.
    """

    _failed = False

    def write(self, data: Any) -> int:
        if self._failed:
            return len(data)
        self._failed = True  # reset after the write: a signal handler may raise within it
        try:
            while (written := super().write(data)) is None:  # a non-blocking pipe is full
                select.select([], [self], [])
        except OSError as error:
            if self.fileno() == _STDOUT:
                raise OutputError(error) from None
            return len(data)
        self._failed = False
        return written


def open_streams() -> None:
    """Set up UTF-8 output in every locale, with escapes for invalid text.

    A closed stream, for example after ``>&-``, is replaced by ``/dev/null``: otherwise the next
    file or socket would get its descriptor. Writing to a closed standard output still fails.
    """
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest free descriptor: this one
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    for descriptor, name in enumerate(("stdout", "stderr"), start=_STDOUT):
        if getattr(sys, name) is getattr(sys, f"__{name}__"):  # not replaced by a test
            buffer = BufferedWriter(raw := _Writer(descriptor, "w", closefd=False))
            stream = TextIOWrapper(buffer, "utf-8", "backslashreplace")
            stream.reconfigure(line_buffering=descriptor != _STDOUT or raw.isatty())
            setattr(sys, name, stream)


def print_message(text: str, level: str = "info") -> None:
    """Print a line on standard error. If this fails, only the exit code reports the error."""
    from tornado_idv.log_format import for_journal  # noqa: PLC0415 - start-up time

    click.echo(for_journal(text, level), err=True)

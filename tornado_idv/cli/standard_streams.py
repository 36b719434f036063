"""The standard streams of a command, after whose end nothing is left in their buffers."""

from __future__ import annotations

import errno
import os
import select
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any

import click

_STDOUT = 1


class OutputError(Exception):
    """Standard output cannot be written; the message says why."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}")
        self.is_closed = error.errno in (errno.EPIPE, errno.EBADF)  # by choice, as of `head`


class _Writer(FileIO):
    """A descriptor that raises one `OutputError`, or none for standard error, then discards all.

    At exit, Python writes what an error or a signal left in the buffer, with exit code 120.
    """

    _failed = False

    def write(self, data: Any) -> int:
        if self._failed:
            return len(data)
        self._failed = True  # unless the write returns; a signal handler may raise
        try:
            while (written := super().write(data)) is None:  # a pipe that does not block is full
                select.select([], [self], [])
        except OSError as error:
            if self.fileno() == _STDOUT:
                raise OutputError(error) from None
            return len(data)
        self._failed = False
        return written


def open_streams() -> None:
    """Encode what is printed as UTF-8 in every locale, and escape what is no text.

    ``/dev/null`` takes the place of a stream that is closed, as after ``>&-``: otherwise the next
    file or socket gets its descriptor. Standard output cannot be written then, either.
    """
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free descriptor, which is this one
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    for descriptor, name in enumerate(("stdout", "stderr"), start=_STDOUT):
        if getattr(sys, name) is getattr(sys, f"__{name}__"):  # not that of a test
            buffer = BufferedWriter(raw := _Writer(descriptor, "w", closefd=False))
            stream = TextIOWrapper(buffer, "utf-8", "backslashreplace")
            stream.reconfigure(line_buffering=descriptor != _STDOUT or raw.isatty())
            setattr(sys, name, stream)


def print_message(text: str, level: str = "info") -> None:
    """Print a line on standard error; where that fails, the exit code has to say it."""
    from tornado_idv.log_format import for_journal  # noqa: PLC0415 - start-up time

    click.echo(for_journal(text, level), err=True)

"""The standard streams of a process that was started without some of them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper

import click

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed_streams() -> frozenset[str]:
    """Open ``/dev/null`` in place of each standard stream that is closed, as after ``>&-``.

    Otherwise the next file or socket gets the stream's descriptor, and the log is written
    into it. Returns the names of the streams that were closed.
    """
    closed = set()
    for descriptor, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))
            closed.add(name)
    return frozenset(closed)


def write_utf8() -> None:
    """Encode what is printed as UTF-8, whatever the locale is, and escape what is no text."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with suppress(OSError):  # of `tell`; the encoding is set by then
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def discard_output() -> None:
    """Discard what is left in the buffer of standard output, after it could not be written.

    It would fail again at exit, and make the exit code 120.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_message(text: str, level: str = "info") -> None:
    """Print a line on standard error; where that fails, the exit code has to say it."""
    from tornado_idv.log_format import for_journal  # noqa: PLC0415 - start-up time

    with suppress(OSError):
        click.echo(for_journal(text, level), err=True)

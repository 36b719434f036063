"""Output of a new token: once, and one that cannot be printed is not valid."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from tornado_idv.cli.common import Record, failure, print_json
from tornado_idv.cli.standard_streams import discard_output, print_message
from tornado_idv.commands import Exit
from tornado_idv.errors import KeyStoreError, UncertainChangeError
from tornado_idv.signals import SIGNALS, ignore_signals


@contextmanager
def token_output() -> Iterator[None]:
    """Exit if standard output is closed, since a token would be lost.

    Within, SIGTERM raises `SystemExit`, and signals are blocked up to `withdrawing`: none comes
    between the commit of a token and what withdraws it.
    """
    if "stdout" in click.get_current_context().find_root().obj:
        print_message("standard output is closed, and the token would be lost")
        sys.exit(Exit.NO)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # raises what is pending


@contextmanager
def withdrawing(withdraw: Callable[[], None]) -> Iterator[None]:
    """Call ``withdraw``, which makes a token invalid, if it cannot be printed, and exit.

    After it has been printed, signals are ignored: the token is valid.
    """
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        yield
        ignore_signals()
    except BaseException as error:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # a second one would interrupt this
        discard_output()
        text = "interrupted"
        if isinstance(error, OSError):
            text = f"standard output cannot be written: {error.strerror}"
        try:
            withdraw()
        except KeyStoreError as failed:
            print_message(f"{text}; the token is lost; revoke the key, since {failed}")
            _exit_uncertain()
        print_message(f"{text}; the token is not valid, and nothing was changed")
        if not isinstance(error, OSError):
            raise
        sys.exit(Exit.NO)


@contextmanager
def printing_uncertain(token: str, *, as_json: bool) -> Iterator[None]:
    """Print a token that may be valid, and exit, where an `UncertainChangeError` is raised."""
    try:
        yield
    except UncertainChangeError as error:
        text = f"{error}; the token that was printed may be valid"
        try:
            print_token(token, failure(error), as_json=as_json)
        except OSError as failed:
            discard_output()
            reason = f"standard output cannot be written: {failed.strerror}"
            text = f"{reason}; the token is lost; revoke the key, since {error}"
        print_message(text)
        _exit_uncertain()


def print_token(token: str, record: Record, *, as_json: bool) -> None:
    """Print the token, alone or with the record of its key; raises `OSError`."""
    if as_json:
        print_json({"token": token, **record})
    else:
        click.echo(token)


def _exit_uncertain() -> NoReturn:
    """Exit with `UNDETERMINED`, also if a signal is pending: its code would mean "not done"."""
    ignore_signals()  # discards a pending one, too
    sys.exit(Exit.UNDETERMINED)

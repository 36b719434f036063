"""Output of a new token: once, and before its row is committed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from tornado_idv.cli.common import Record, print_json
from tornado_idv.cli.standard_streams import discard_output, print_message
from tornado_idv.commands import Exit
from tornado_idv.errors import KeyStoreError, UncertainChangeError


@contextmanager
def token_output(token: str, *, as_json: bool) -> Iterator[Callable[[Record], None]]:
    """Yield what prints the token, alone or with the record of its key, within its change.

    If it cannot be printed, nothing is changed; if the change is not made after that, a message
    says that the token is not valid.
    """
    if "stdout" in click.get_current_context().find_root().obj:
        print_message("standard output is closed, and the token would be lost")
        sys.exit(Exit.NO)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    printed = False

    def print_token(record: Record) -> None:
        nonlocal printed
        printed = True  # at least in part, also where a signal interrupts it
        try:
            if as_json:
                print_json({"token": token, **record})
            else:
                click.echo(token)
        except OSError as error:
            printed = False
            discard_output()
            text = f"standard output cannot be written: {error.strerror}; no key was changed"
            print_message(text)
            sys.exit(Exit.NO)

    try:
        yield print_token
    except BaseException as error:
        if printed:
            reason = str(error) if isinstance(error, KeyStoreError) else "interrupted"
            is_uncertain = isinstance(error, UncertainChangeError)
            validity = "may be valid" if is_uncertain else "is not valid"
            print_message(f"{reason}; the token that was printed {validity}")
            if isinstance(error, KeyStoreError):
                sys.exit(Exit.UNDETERMINED if is_uncertain else Exit.NO)
        raise

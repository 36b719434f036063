"""The commands ``tornado-idv keys``: issue, change, list and show the keys of the key store."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, get_args

import click

from tornado_idv.cli.common import RefusedError, examples, print_json, report, show
from tornado_idv.cli.standard_streams import OutputError, print_message
from tornado_idv.errors import KeyStoreError, UncertainChangeError
from tornado_idv.features.keys.editor import Change, KeyEditor, KeyRecord, Token
from tornado_idv.features.keys.store import Target, as_record, create_option, on_store
from tornado_idv.features.keys.transfer import export_keys, import_keys
from tornado_idv.interfaces.command_tools import Exit, printable
from tornado_idv.keys.api_key import DEFAULT_SCOPES, Scope
from tornado_idv.keys.token import digest
from tornado_idv.keys.token import issue as new_token

_id_argument = click.argument("key_id", metavar="ID")


@click.group()
def keys() -> None:
    """Issue, rotate and revoke the keys in the key store.

    A change is effective in a running service within a second. Changes are logged to standard
    error.

    Exit codes: 0 done, even if nothing was printed; 1 no key was changed; 2 wrong use; 3 a
    key may have been changed; 130 interrupted, no key was changed.
    """


keys.add_command(export_keys)
keys.add_command(import_keys)


@keys.command(
    epilog=examples(
        "keys issue shop --create",
        "keys issue shop --scope identify:url --expires 90d --requests 100/second",
    )
)
@_id_argument
@click.option(
    "--owner", default="", show_default=False, help="Person or program that uses the key."
)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(get_args(Scope)),
    help="Permission of the key; may be repeated.  [default: both identify scopes]",
)
@click.option("--expires", metavar="90d|DATE", help="End of the key's validity.  [default: never]")
@click.option("--not-before", metavar="7d|DATE", help="Start of the key's validity.")
@click.option("--requests", metavar="RATE", help="Rate limit of requests, like 100/second.")
@click.option("--misses", metavar="RATE", help='Rate limit of misses, like "300/10 minutes".')
@click.option("--note", default="", show_default=False, help="A note for operators.")
@create_option
@on_store
def issue(
    target: Target, *, key_id: str, scopes: tuple[Scope, ...], may_create: bool, **attributes: Any
) -> None:
    """Issue a key, and print its token.

    The token is shown only once. Nothing else is written to standard output.
    """
    now, token = target.now, new_token(key_id)
    tokens = (Token(digest(token), now),)
    key = KeyRecord(key_id, now, tokens, scopes=scopes or DEFAULT_SCOPES, **attributes)
    _check_expiry(key.expires, max(key.not_before or now, now))
    target.check_new(key)

    def add(store: KeyEditor) -> KeyRecord:
        store.add([key])
        return key

    if may_create:
        target.create()
    _change_and_print_token(target, "issue", key_id, token, add)


@keys.command(epilog=examples("keys rotate shop --overlap 7d"))
@_id_argument
@click.option("--overlap", default="24h", help="Remaining validity of the older tokens.")
@click.option(
    "--expires", metavar="90d|DATE", help="End of the key's validity.  [default: unchanged]"
)
@on_store
def rotate(target: Target, key_id: str, overlap: float, expires: float | None) -> None:
    """Add a token to a key. The older tokens expire after --overlap.

    The new token is shown only once. Nothing else is written to standard output. --expires does not
    prolong the older tokens.
    """
    now, token = target.now, new_token(key_id)
    _check_expiry(expires, now)

    def add(store: KeyEditor) -> KeyRecord:
        return store.rotate(key_id, Token(digest(token), now), overlap=overlap, expires=expires)[1]

    after = _change_and_print_token(target, "rotate", key_id, token, add)
    if after.disabled:
        print_message(f"{key_id} is disabled; tornado-idv keys enable enables it")


def _check_expiry(expires: float | None, after: float) -> None:
    if expires is not None and expires <= after:
        raise RefusedError("--expires: must be in the future, and after --not-before")


def _change_and_print_token(
    target: Target, command: str, key_id: str, token: str, change: Callable[[KeyEditor], KeyRecord]
) -> KeyRecord:
    """Call ``change`` to issue or rotate a key. Print the token, and then commit.

    If printing fails, nothing is changed. If the commit fails, a message says that the printed
    token is not valid. If the commit may have succeeded, it says that the token may be valid.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    printed = False
    try:
        with target.changing(command, [key_id]) as store:
            key = change(store)
            printed = True  # the token may have been shown, even if a signal interrupts the write
            try:
                record = {"token": token, **as_record(key, target.now)}
                show(record, [token], as_json=target.as_json)
            except OutputError as error:
                printed = False
                print_message(f"{error}; no key was changed")
                sys.exit(Exit.NO)
    except BaseException as error:
        if printed:
            reason = str(error) if isinstance(error, KeyStoreError) else "interrupted"
            is_uncertain = isinstance(error, UncertainChangeError)
            validity = "may be valid" if is_uncertain else "is not valid"
            print_message(f"{reason}; the printed token {validity}")
            if isinstance(error, KeyStoreError):
                sys.exit(Exit.UNDETERMINED if is_uncertain else Exit.NO)
        raise
    target.audit(command, [key_id])
    return key


@keys.command(epilog=examples("keys revoke shop"))
@_id_argument
@on_store
def revoke(target: Target, key_id: str) -> None:
    """Revoke a key with all its tokens, permanently.

    The key stays listed. Its id cannot be used again.
    """
    _change(target, "revoke", key_id, lambda store: store.revoke(key_id, target.now))


@keys.command(epilog=examples("keys disable shop"))
@_id_argument
@on_store
def disable(target: Target, key_id: str) -> None:
    """Disable a key until it is enabled."""
    _change(target, "disable", key_id, lambda store: store.set_disabled(key_id, disabled=True))


@keys.command(epilog=examples("keys enable shop"))
@_id_argument
@on_store
def enable(target: Target, key_id: str) -> None:
    """Enable a disabled key."""
    _change(target, "enable", key_id, lambda store: store.set_disabled(key_id, disabled=False))


def _change(
    target: Target, command: str, key_id: str, change: Callable[[KeyEditor], Change]
) -> None:
    with target.changing(command, [key_id]) as store:
        before, after = change(store)
    if before != after:
        target.audit(command, [key_id])
    record = as_record(after, target.now)
    was = "; nothing was changed" if before == after else ""
    report(f"{key_id}: {record['state']}{was}", record, as_json=target.as_json)


_LONGEST_WORD = 16
_COLUMNS = ("id", "state", "owner", "scopes", "expires", "last_used", "note")


@keys.command("list", epilog=examples("keys list --unused 90d"))
@click.option(
    "--unused",
    metavar="90d",
    help="Only unrevoked keys older than this time, and unused for this time.",
)
@click.option("--expiring", metavar="14d", help="Only valid keys that expire within this time.")
@click.option("--owner", "owned_by", help="Only keys of this owner.")
@on_store
def list_keys(
    target: Target, unused: float | None, expiring: float | None, owned_by: str | None
) -> None:
    """List the keys of the store, including revoked keys."""
    now = target.now
    with target.opened() as store:
        keys = list(store.records())
    if owned_by is not None:
        keys = [key for key in keys if key.owner == owned_by]
    if unused is not None:
        keys = [key for key in keys if key.revoked is None]
        keys = [key for key in keys if max(key.created, key.last_used or 0.0) < now - unused]
    if expiring is not None:
        keys = [key for key in keys if key.state(now) == "valid"]
        keys = [key for key in keys if key.valid_until <= now + expiring]
    records = [as_record(key, now) for key in keys]
    if target.as_json:
        print_json(records)
    elif records:
        ends = {"expires": 10, "last_used": 10}  # the table shows only the days of these times
        rows = [[_cell(each[name])[: ends.get(name)] for name in _COLUMNS] for each in records]
        for number, line in enumerate(_table(rows)):
            click.secho(line, bold=number == 0)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table that fits the width of the terminal.

    Empty columns are left out. Long cells are wrapped, except for the ids.
    """
    columns = [
        [name, *cells] for name, *cells in zip(_COLUMNS, *rows, strict=True) if {*cells} != {"-"}
    ]
    widths = [max(map(len, column)) for column in columns]
    words = [max(map(len, " ".join(column).split())) for column in columns]
    least = [widths[0], *(min(longest, _LONGEST_WORD) for longest in words[1:])]
    spare = get_terminal_size().columns - 2 * (len(widths) - 1)
    while sum(widths) > spare and widths != least:
        _, widest = max((width, i) for i, width in enumerate(widths) if width > least[i])
        widths[widest] -= 1
    for row in zip(*columns, strict=True):
        for line in zip_longest(*map(wrap, row, widths), fillvalue=""):
            yield "  ".join(map(str.ljust, line, widths)).rstrip()


@keys.command("show", epilog=examples("keys show shop"))
@_id_argument
@on_store
def show_key(target: Target, key_id: str) -> None:
    """Show a key, with the creation and expiry of its tokens."""
    with target.opened() as store:
        record = as_record(store.find(key_id), target.now)
    lines = [f"{name + ':':12}{_cell(value)}" for name, value in record.items() if name != "tokens"]
    for token in record["tokens"]:
        ends = f", expires {token['expires']}" if token["expires"] else ""
        lines.append(f"{'token:':12}created {token['created']}{ends}")
    show(record, lines, as_json=target.as_json)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value)) if value else "-"

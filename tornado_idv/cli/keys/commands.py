"""``tornado-idv keys``: issue, rotate, revoke, disable and enable keys of the key store."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import get_args

import click

from tornado_idv.cli.common import Record, print_json, report
from tornado_idv.cli.keys.import_keys import import_keys
from tornado_idv.cli.keys.list_keys import list_keys, show
from tornado_idv.cli.keys.store import (
    KeyCommandError,
    Target,
    as_record,
    check_id,
    check_moment,
    create_option,
    find_store,
    on_store,
    parse_moment,
    parse_text,
)
from tornado_idv.cli.standard_streams import discard_output, print_message
from tornado_idv.errors import KeyStoreError, UncertainChangeError
from tornado_idv.interfaces.commands import Exit
from tornado_idv.keys.api_key import DEFAULT_SCOPES, Scope
from tornado_idv.keys.record import KeyRecord, Token, check_text
from tornado_idv.keys.store import KeyStore
from tornado_idv.keys.token import digest
from tornado_idv.keys.token import issue as new_token
from tornado_idv.units import Rate, parse_duration, parse_rate

_id_argument = click.argument("key_id", metavar="ID")


@click.group()
def keys() -> None:
    """Issue, rotate and revoke the keys in the key store.

    A change is effective in a running service within a second. Each is logged to standard error.

    Exit codes: 0 done, even if that cannot be printed; 1 not done, no key was changed; 2 wrong
    use; 3 could not be determined whether it was done; 130 interrupted, no key was changed.
    """


for command in (list_keys, show, import_keys):
    keys.add_command(command)


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


@keys.command()
@_id_argument
@click.option("--owner", default="", help="Who uses the key.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(get_args(Scope)),
    help="What the key permits; may be repeated.  [default: both identify scopes]",
)
@click.option("--expires", metavar="90d|DATE", help="When the key expires.  [default: never]")
@click.option("--not-before", metavar="7d|DATE", help="From when on the key is valid.")
@click.option("--requests", metavar="RATE", help="The limit of requests, like 100/second.")
@click.option("--misses", metavar="RATE", help='The limit of misses, like "300/10 minutes".')
@click.option("--note", default="", help="A note for operators.")
@create_option
@on_store
def issue(
    target: Target,
    key_id: str,
    scopes: tuple[Scope, ...],
    may_create: bool,  # noqa: FBT001 click's way
    **options: str | None,
) -> None:
    """Issue a key, and print its token, once.

    The token is alone on standard output.
    """
    now, token = time.time(), new_token(check_id(key_id))
    starts = parse_moment(options["not_before"], now, "--not-before")
    key = KeyRecord(
        key_id,
        now,
        (Token(digest(token), now),),
        parse_text(check_text, options["owner"] or "", "--owner"),
        scopes or DEFAULT_SCOPES,
        starts,
        _expiry(options["expires"], now, max(starts or now, now)),
        _rate(options["requests"], "--requests"),
        _rate(options["misses"], "--misses"),
        parse_text(check_text, options["note"] or "", "--note"),
    )
    target.check_new(key)
    if may_create:
        target.create()
    with (
        token_output(token, as_json=target.as_json) as print_token,
        target.changing("issue", [key_id]) as store,
    ):
        store.add([key])
        print_token(as_record(key, now))
    target.audit("issue", [key_id])


@keys.command()
@_id_argument
@click.option(
    "--overlap", default="24h", show_default=True, help="How long the older tokens stay valid."
)
@click.option("--expires", metavar="90d|DATE", help="When the key expires.  [default: as before]")
@on_store
def rotate(target: Target, key_id: str, overlap: str, expires: str | None) -> None:
    """Add a token to a key; the older ones expire after an overlap.

    The new token is printed, once, alone on standard output. Limits and the time of last use are
    those of the key, whatever its token. With --expires the key is renewed; its older tokens
    never become valid for longer.
    """
    now, token = time.time(), new_token(check_id(key_id))
    added, seconds = Token(digest(token), now), parse_text(parse_duration, overlap, "--overlap")
    check_moment(now + seconds, "--overlap")
    ends = _expiry(expires, now, now)
    with (
        token_output(token, as_json=target.as_json) as print_token,
        target.changing("rotate", [key_id]) as store,
    ):
        _, after = store.rotate(key_id, added, overlap=seconds, expires=ends)
        print_token(as_record(after, now))
    target.audit("rotate", [key_id])
    if after.disabled:
        print_message(f"{key_id} is disabled; tornado-idv keys enable enables it")


@keys.command("copy")
@click.option(
    "--from",
    "source_path",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The configuration whose auth.store is copied.",
)
@create_option
@on_store
def copy_keys(
    target: Target,
    source_path: Path,
    may_create: bool,  # noqa: FBT001 click's way
) -> None:
    """Copy all keys of another key store, all or none.

    Tokens stay valid: a copy has the same ids, digests, limits, times and states. It can be run
    again, and copies what was changed since. A key that was changed in this store, too, stops it.
    """
    source = find_store(source_path, None, as_json=target.as_json).location
    with closing(source), source.opened(read_only=True) as store:
        keys = list(store.records())
    for key in keys:
        target.check_new(key)
    all_ids = [key.id for key in keys]
    with target.changing("copy", all_ids, may_create=may_create) as store:
        changes = store.copy(keys, time.time())
    target.audit("copy", changes.ids)
    copied, updated = len(changes.new), len(changes.changed)
    unchanged = len(keys) - copied - updated
    record = {"ok": True, "copied": copied, "updated": updated, "unchanged": unchanged}
    text = f"Copied keys from {source.name} to {target.location.name}"
    text = f"{text}: {copied} new, {updated} updated, {unchanged} equal."
    report(text, record, as_json=target.as_json)


@keys.command()
@_id_argument
@on_store
def revoke(target: Target, key_id: str) -> None:
    """Revoke a key, with all its tokens, permanently.

    It stays listed, and its id is not used again.
    """
    _change(target, "revoke", key_id, lambda store: store.revoke(key_id, time.time()))


@keys.command()
@_id_argument
@on_store
def disable(target: Target, key_id: str) -> None:
    """Disable a key, until it is enabled."""
    _change(target, "disable", key_id, lambda store: store.set_disabled(key_id, disabled=True))


@keys.command()
@_id_argument
@on_store
def enable(target: Target, key_id: str) -> None:
    """Enable a key that was disabled."""
    _change(target, "enable", key_id, lambda store: store.set_disabled(key_id, disabled=False))


def _change(
    target: Target,
    command: str,
    key_id: str,
    change: Callable[[KeyStore], tuple[KeyRecord, KeyRecord]],
) -> None:
    check_id(key_id)
    with target.changing(command, [key_id]) as store:
        before, after = change(store)
    if before != after:
        target.audit(command, [key_id])
    record = as_record(after, time.time())
    was = "; nothing was changed" if before == after else ""
    report(f"{key_id}: {record['state']}{was}", record, as_json=target.as_json)


def _expiry(text: str | None, now: float, after: float) -> float | None:
    moment = parse_moment(text, now, "--expires")
    if moment is not None and moment <= after:
        raise KeyCommandError("--expires: must be in the future, and after --not-before")
    return moment


def _rate(text: str | None, option: str) -> Rate | None:
    return None if text is None else parse_text(parse_rate, text, option)

"""``tornado-idv keys list`` and ``tornado-idv keys show``."""

from __future__ import annotations

import time

import click

from tornado_idv.cli.common import print_json
from tornado_idv.cli.keys.store import Target, as_record, on_store
from tornado_idv.interfaces.commands import printable

_COLUMNS = ("id", "state", "owner", "scopes", "expires", "last_used", "note")


@click.command("list")
@click.option("--unused", metavar="90d", help="Only keys that were not used for so long.")
@click.option("--expiring", metavar="14d", help="Only valid keys that expire within this time.")
@click.option("--owner", "owned_by", help="Only keys of this owner.")
@on_store
def list_keys(
    target: Target, unused: float | None, expiring: float | None, owned_by: str | None
) -> None:
    """List the keys of the store, also those that are revoked.

    With --unused, keys that are not revoked and were neither issued nor used within this time.
    """
    now = time.time()
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
    records = list(map(as_record, keys))
    if target.as_json:
        print_json(records)
    elif records:
        rows = [_COLUMNS, *([_cell(each[column]) for column in _COLUMNS] for each in records)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            click.secho("  ".join(map(str.ljust, row, widths)).rstrip(), bold=row is _COLUMNS)


@click.command()
@click.argument("key_id", metavar="ID")
@on_store
def show(target: Target, key_id: str) -> None:
    """Show a key; of its tokens, only when they were created and expire."""
    with target.opened() as store:
        record = as_record(store.find(key_id))
    if target.as_json:
        print_json(record)
        return
    tokens = record.pop("tokens")
    for name, value in record.items():
        click.echo(f"{name + ':':12}{_cell(value)}")
    for token in tokens:
        ends = f", expires {token['expires']}" if token["expires"] else ""
        click.echo(f"{'token:':12}created {token['created']}{ends}")


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value)) if value else "-"

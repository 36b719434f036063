"""``tornado-idv keys copy``: all keys of one key store into another."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import click

from tornado_idv.cli.common import report
from tornado_idv.cli.keys.store import Target, create_option, find_store, on_store


@click.command("copy")
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
    text = f"Copied {copied} keys from {source.name} to {target.location.name}"
    text = f"{text}; {updated} were updated, and {unchanged} were equal."
    report(text, record, as_json=target.as_json)

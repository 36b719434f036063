"""``tornado-idv keys copy``: all keys of one key store into another."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from tornado_idv.cli.key_store import Target, create_option, find_store, on_store, report


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
    again: keys that are in both stores must be the same, and only their last use is updated.
    """
    source = find_store(source_path, None, as_json=target.as_json).location
    with closing(source), source.opened(read_only=True) as store:
        keys = list(store.records())
    for key in keys:
        target.check_new(key)
    with target.opened(may_create=may_create) as store:
        copied = store.copy(keys)
    target.audit("copy", copied)
    text = f"Copied {len(copied)} keys from {source.name} to {target.location.name}"
    record = {"ok": True, "copied": len(copied), "unchanged": len(keys) - len(copied)}
    report(f"{text}; {record['unchanged']} were there already.", record, as_json=target.as_json)

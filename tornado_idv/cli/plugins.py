"""``tornado-idv plugins``."""

from __future__ import annotations

import click

from tornado_idv.cli.common import exit_on_error, json_option, print_json
from tornado_idv.commands import Exit
from tornado_idv.registry import backend_kinds, plugin_manager


@click.command()
@json_option
def plugins(as_json: bool) -> None:  # noqa: FBT001 click's way
    """List the kinds of backend that the installed plugins offer."""
    with exit_on_error(Exit.NO, as_json=as_json):
        kinds = backend_kinds(plugin_manager())
        rows = {kind: kinds.module(kind).partition(".")[0] for kind in sorted(kinds)}
        summaries = {kind: (kinds[kind].__doc__ or "").partition("\n")[0] for kind in rows}
    if as_json:
        print_json(rows)
        return
    for kind, module in rows.items():
        click.echo(f"{kind:12} {module:16} {summaries[kind]}")

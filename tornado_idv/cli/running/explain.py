"""``tornado-idv explain``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tornado_idv.cli.common import print_json
from tornado_idv.cli.running.admin_client import admin_options, post_or_exit
from tornado_idv.commands import Exit, printable

_CODES = {"found": Exit.DONE, "not_found": Exit.NO}
_RESULTS = {"found": "found", "not_found": "not found"}
_CACHED = {
    "found": "a found user",
    "not_found": '"not found"',
    "stale": "an expired answer, which is served only if the lookup fails",
    "failure": "a failure, which is repeated for cache.failure_memo",
    "absent": "nothing",
}


@click.command()
@click.argument("who", metavar="@NICK|URL|DIGITS")
@admin_options
def explain(*, who: str, config_path: Path, token_file: Path | None, as_json: bool) -> None:
    """Show how each backend of the running service responds.

    The backends are called past the cache, and nothing is cached. The user is not shown.

    Exit codes: 0 found; 1 not found; 2 wrong use; 3 could not be determined.
    """
    name = "card_number" if who.isdigit() else "input"
    record = post_or_exit("/explain", {name: who}, config_path, token_file, as_json=as_json)
    if as_json:
        print_json(record)
    else:
        cached = record["cache"]
        click.echo(f"cached: {_CACHED.get(cached, printable(cached))}")
        for each in record["backends"]:
            click.echo(printable(f"asked {each['backend']}: {each['outcome']} ({each['ms']} ms)"))
        click.echo(f"result: {_RESULTS.get(record['result'], 'could not be determined')}")
    sys.exit(_CODES.get(record["result"], Exit.UNDETERMINED))

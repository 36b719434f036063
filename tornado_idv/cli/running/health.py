"""``tornado-idv health``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tornado_idv.cli.common import exit_on_error, print_json
from tornado_idv.cli.running.admin_client import admin_client, admin_options
from tornado_idv.commands import Exit, printable

_SENTENCES = {
    "ready": "The service is ready.",
    "degraded": "The service is ready, but degraded: {parts}.",
    "starting": "The service is starting: no worker serves yet.",
    "draining": "The service is draining: it is about to stop.",
}


@click.command()
@admin_options
def health(*, config_path: Path, token_file: Path | None, as_json: bool) -> None:
    """Report whether the running service is ready.

    Exit codes: 0 ready, also if degraded; 1 starting or draining; 3 no response.
    """
    with exit_on_error(Exit.UNDETERMINED, as_json=as_json):
        status, record = admin_client(config_path, token_file).request("GET", "/health/ready")
    if as_json:
        print_json(record)
    else:
        sentence = _SENTENCES.get(str(record["status"]), "The service is {status}.")
        parts = ", ".join(map(str, record.get("degraded", ())))
        click.echo(printable(sentence.format(parts=parts, status=record["status"])))
    sys.exit(Exit.DONE if status == 200 else Exit.NO)  # noqa: PLR2004 - OK

"""``tornado-idv reload``."""

from __future__ import annotations

import http.client
import sys
from pathlib import Path

import click

from tornado_idv.cli.common import Record, exit_on_error, print_json
from tornado_idv.cli.running.admin_client import admin_client, admin_options
from tornado_idv.commands import Exit, printable

_TIMEOUT = 150.0
"""Seconds: longer than the service waits for its backends."""


@click.command()
@admin_options
def reload(*, config_path: Path, token_file: Path | None, as_json: bool) -> None:
    """Reload the configuration of the running service.

    All of it is applied, or nothing.

    Exit codes: 0 done; 1 the configuration is wrong, and the old one stays in force; 3 could not
    be determined: no response, or a file or backend that cannot be opened.
    """
    with exit_on_error(Exit.UNDETERMINED, as_json=as_json, config_code=Exit.NO):
        client = admin_client(config_path, token_file)
        status, record = client.request("POST", "/reload", timeout=_TIMEOUT)
    if as_json:
        print_json(record)
    else:
        _print_lines(record)
    sys.exit(Exit.NO if status == http.client.UNPROCESSABLE_ENTITY else Exit.DONE)


def _print_lines(record: Record) -> None:
    if record["status"] != "ok":
        click.echo(printable(str(record.get("message"))), err=True)
        for problem in record.get("problems", ()):
            click.echo(printable(str(problem)), err=True)
        return
    click.echo("The configuration is reloaded.")
    if record["needs_restart"]:
        names = ", ".join(map(str, record["needs_restart"]))
        click.echo(printable(f"These settings take effect after a restart: {names}"))

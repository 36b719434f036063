"""``tornado-idv check`` and ``tornado-idv schema``."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from tornado_idv.cli.common import (
    as_records,
    config_option,
    exit_on_error,
    json_option,
    load_settings,
    print_json,
)
from tornado_idv.cli.rehearsal import Rehearsal, rehearse
from tornado_idv.commands import Exit
from tornado_idv.config.schema import json_schema
from tornado_idv.config.settings import Settings
from tornado_idv.config.summary import summary
from tornado_idv.registry import backend_kinds, plugin_manager
from tornado_idv.server.logs import keep_out_secrets


@click.command()
@config_option
@click.option("--config-only", is_flag=True, help="Leave the backends and their data alone.")
@json_option
def check(config_path: Path, config_only: bool, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Tell what is wrong with config.yaml, or what would run.

    Once the settings are good, each backend is opened and closed, so that a missing
    file or a table without a column is told too.
    """
    keep_out_secrets()
    with exit_on_error(Exit.NO, as_json=as_json):
        settings, manager = load_settings(config_path)
        told = Rehearsal([], [])
        if not config_only:
            told = asyncio.run(rehearse(config_path, settings, backend_kinds(manager)))
    if as_json:
        _print_record(settings, told)
    else:
        _print_lines(config_path, settings, told)
    sys.exit(Exit.NO if told.problems else Exit.DONE)


def _print_record(settings: Settings, told: Rehearsal) -> None:
    warnings = as_records(told.warnings)
    if told.problems:
        print_json({"ok": False, "problems": as_records(told.problems), "warnings": warnings})
    else:
        rows = summary(settings, datetime.now(UTC))
        print_json({"ok": True, "summary": rows, "warnings": warnings})


def _print_lines(path: Path, settings: Settings, told: Rehearsal) -> None:
    for warning in told.warnings:
        click.echo(f"warning: {warning}", err=True)
    for problem in told.problems:
        click.echo(str(problem), err=True)
    if not told.problems:
        click.echo(f"ok: {click.format_filename(path)}\n")
        for label, text in summary(settings, datetime.now(UTC)):
            click.echo(f"{label:14} {text}")


@click.command()
def schema() -> None:
    """Print the JSON Schema of config.yaml.

    It knows the options of the installed plugins; an editor completes and checks by it.
    """
    with exit_on_error(Exit.NO):
        click.echo(json.dumps(json_schema(backend_kinds(plugin_manager())), indent=2))

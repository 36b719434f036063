"""``tornado-idv check``, ``schema``, ``openapi`` and ``plugins``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from tornado_idv.cli.common import (
    config_option,
    exit_on_error,
    failure,
    json_option,
    print_json,
)
from tornado_idv.cli.dry_run import DryRun
from tornado_idv.config.load import load, load_without_references
from tornado_idv.config.schema import json_schema
from tornado_idv.config.summary import summary
from tornado_idv.errors import ConfigError, Problem
from tornado_idv.interfaces.commands import Exit
from tornado_idv.logs.handlers import keep_out_secrets
from tornado_idv.registry import backend_kinds, key_stores, plugin_manager
from tornado_idv.web.openapi import describe_api

Rows = list[tuple[str, str]]

_MAX_ABSENT = 10


@click.command()
@config_option
@click.option(
    "--config-only",
    is_flag=True,
    help="Check config.yaml alone: without secrets, TLS files, backends and their data.",
)
@json_option
def check(config_path: Path, config_only: bool, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Report what is wrong with config.yaml, or what would run.

    If the settings are valid, the TLS files are loaded and each backend is opened and
    closed, so that a missing file or a table without a column is reported too.
    """
    keep_out_secrets()
    result = DryRun(config_path)
    with exit_on_error(Exit.NO, as_json=as_json):
        manager = plugin_manager()
        kinds = backend_kinds(manager)
        if config_only:
            settings, absent = load_without_references(config_path, kinds, os.environ)
        else:
            settings, absent = load(config_path, kinds, os.environ), []
            asyncio.run(result.run(settings, kinds, key_stores(manager)))
    rows = _absent(absent)
    if settings is not None:
        rows = summary(settings, datetime.now(UTC)) + rows
        if settings.server.warning is not None:
            result.warn(settings.server.warning, "server", "host")
    if as_json:
        problems = failure(ConfigError(*result.problems))
        record = problems if result.problems else {"ok": True, "summary": rows}
        print_json({**record, "warnings": [asdict(each) for each in result.warnings]})
    else:
        for each in (*(f"warning: {each}" for each in result.warnings), *result.problems):
            click.echo(str(each), err=True)
        if not result.problems:
            click.echo(f"ok: {click.format_filename(config_path)}\n")
            for label, text in rows:
                click.echo(f"{label:14} {text}")
    sys.exit(Exit.NO if result.problems else Exit.DONE)


def _absent(problems: Sequence[Problem]) -> Rows:
    """Rows for the references that are not resolved."""
    rows = [("not resolved", f"{each.path}: {each.message}") for each in problems[:_MAX_ABSENT]]
    more = len(problems) - _MAX_ABSENT
    return [*rows, ("not resolved", f"and {more} more")] if more > 0 else rows


@click.command()
def schema() -> None:
    """Print the JSON Schema of config.yaml.

    It contains the options of the installed plugins. Editors use it to complete and check.
    """
    with exit_on_error(Exit.NO):
        click.echo(json.dumps(json_schema(backend_kinds(plugin_manager())), indent=2))


@click.command()
@config_option
def openapi(config_path: Path) -> None:
    """Print the OpenAPI document of the API with this configuration."""
    with exit_on_error(Exit.NO):
        kinds = backend_kinds(plugin_manager())
        settings, absent = load_without_references(config_path, kinds, os.environ)
        if settings is None:
            raise ConfigError(*absent)
        click.echo(json.dumps(describe_api(settings), indent=2))


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
    widths = max(map(len, rows), default=0), max(map(len, rows.values()), default=0)
    for kind, module in rows.items():
        click.echo(f"{kind:{widths[0]}}  {module:{widths[1]}}  {summaries[kind]}")

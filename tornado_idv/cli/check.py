"""``tornado-idv check`` and ``tornado-idv schema``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from tornado_idv.cli.common import Exit, config_option, json_option, load_settings, told_as
from tornado_idv.config.schema import json_schema
from tornado_idv.config.summary import summary
from tornado_idv.errors import ConfigError
from tornado_idv.registry import backend_kinds, plugin_manager


@click.command()
@config_option
@json_option
def check(config_path: Path, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Tell what is wrong with config.yaml, or what would run."""
    with told_as(Exit.NO):
        try:
            settings, _ = load_settings(config_path)
        except ConfigError as error:
            if not as_json:
                raise
            problems = [asdict(problem) for problem in error.problems]
            click.echo(json.dumps({"ok": False, "problems": problems}))
            sys.exit(Exit.NO)
    rows = summary(settings, datetime.now(UTC))
    if as_json:
        click.echo(json.dumps({"ok": True, "summary": rows}))
        return
    click.echo("ok\n")
    for label, text in rows:
        click.echo(f"{label:14} {text}")


@click.command()
def schema() -> None:
    """Print the JSON Schema of config.yaml.

    It knows the options of the installed plugins; an editor completes and checks by it.
    """
    with told_as(Exit.NO):
        click.echo(json.dumps(json_schema(backend_kinds(plugin_manager())), indent=2))

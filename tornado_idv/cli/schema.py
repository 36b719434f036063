"""``tornado-idv schema``."""

from __future__ import annotations

import json

import click

from tornado_idv.cli.common import exit_on_error
from tornado_idv.commands import Exit
from tornado_idv.config.schema import json_schema
from tornado_idv.registry import backend_kinds, plugin_manager


@click.command()
def schema() -> None:
    """Print the JSON Schema of config.yaml.

    It contains the options of the installed plugins. Editors use it to complete and check.
    """
    with exit_on_error(Exit.NO):
        click.echo(json.dumps(json_schema(backend_kinds(plugin_manager())), indent=2))

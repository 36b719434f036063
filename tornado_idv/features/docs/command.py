"""The command ``tornado-idv openapi``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from tornado_idv.cli.common import config_option, examples, exit_on_error
from tornado_idv.config.load import load_without_references
from tornado_idv.errors import ConfigError
from tornado_idv.features.docs.openapi import describe_api
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.registry import installed_kinds, plugin_manager


@click.command(epilog=examples("openapi > openapi.json"))
@config_option
def openapi(config_path: Path) -> None:
    """Print the OpenAPI document of the API with this configuration."""
    with exit_on_error(Exit.NO):
        kinds = installed_kinds(plugin_manager())
        settings, absent = load_without_references(config_path, kinds, os.environ)
        if settings is None:
            raise ConfigError(*absent)
        click.echo(json.dumps(describe_api(settings), indent=2))

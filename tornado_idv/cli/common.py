"""What the commands share: the option for the file, its loading, and the exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

import click
import pluggy

from tornado_idv.config.load import load
from tornado_idv.config.settings import Settings
from tornado_idv.errors import IdvError
from tornado_idv.registry import backend_kinds, plugin_manager


class Exit(IntEnum):
    """What a command's exit code says."""

    DONE = 0
    NO = 1
    WRONG_USE = 2
    COULD_NOT_TELL = 3


config_option = click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    default=Path("config.yaml"),
    show_default=True,
    help="The configuration file.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


@contextmanager
def told_as(code: Exit) -> Iterator[None]:
    """Prints an error of ours as sentences on standard error and exits with ``code``."""
    try:
        yield
    except IdvError as error:
        click.echo(str(error), err=True)
        sys.exit(code)


def load_settings(path: Path) -> tuple[Settings, pluggy.PluginManager]:
    """The settings of a file, and the plugins that gave them their kinds of backend.

    Raises `StartError`, and its `ConfigError` with everything that is wrong.
    """
    manager = plugin_manager()
    return load(path, backend_kinds(manager), os.environ), manager

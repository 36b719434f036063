"""What the commands share: the option for the file, its loading, and the exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pluggy

from tornado_idv.commands import CommandTools, Exit, LoadedConfig
from tornado_idv.config.load import load, locate, reference_values
from tornado_idv.config.names import dotted
from tornado_idv.config.settings import Settings
from tornado_idv.errors import ConfigError, IdvError, Problem, SettingError
from tornado_idv.registry import backend_kinds, plugin_manager

Record = dict[str, Any]


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


def print_json(record: Record | list[Record]) -> None:
    """Prints one record, or a list, which is all that a script reads on standard output."""
    click.echo(json.dumps(record))


def as_records(problems: Iterable[Problem]) -> list[Record]:
    """Problems for scripts."""
    return [asdict(problem) for problem in problems]


def failure(error: IdvError) -> Record:
    """An error of ours for scripts; what is wrong with no place in a file has no line."""
    if isinstance(error, ConfigError):
        return {"ok": False, "problems": as_records(error.problems)}
    nowhere = {"file": None, "line": None, "column": None, "path": ""}
    return {"ok": False, "problems": [{**nowhere, "message": str(error)}]}


@contextmanager
def exit_on_error(
    code: Exit,
    *,
    as_json: bool = False,
    record: Callable[[IdvError], Record] = failure,
    config_code: Exit | None = None,
) -> Iterator[None]:
    """Prints an error of ours and exits with ``code``, or with ``config_code`` for `ConfigError`.

    For people it is sentences on standard error, for scripts the ``record`` of it.
    """
    try:
        yield
    except IdvError as error:
        if as_json:
            print_json(record(error))
        else:
            with suppress(OSError):  # the exit code says it too
                click.echo(str(error), err=True)
        is_config = config_code is not None and isinstance(error, ConfigError)
        sys.exit(config_code if is_config else code)


@contextmanager
def located(path: Path) -> Iterator[None]:
    """Raise a `ConfigError` with the position in the file for a `SettingError` within."""
    try:
        yield
    except SettingError as error:
        place = Problem(str(path), *locate(path, *error.steps), dotted(error.steps), str(error))
        raise ConfigError(place) from None


def load_settings(path: Path) -> tuple[Settings, pluggy.PluginManager]:
    """The settings of a file, and the plugins that gave them their kinds of backend.

    Raises `StartError`, and its `ConfigError` with everything that is wrong.
    """
    manager = plugin_manager()
    return load(path, backend_kinds(manager), os.environ), manager


class Commands(click.Group):
    """Our commands, and those of plugins, which are loaded only when one may be theirs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._of_plugins()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or self._of_plugins().get(cmd_name)

    def _of_plugins(self) -> dict[str, click.Command]:
        try:
            offered = plugin_manager().hook.idv_commands(tools=_TOOLS)
        except Exception as error:  # noqa: BLE001 - our own commands work without plugins
            click.echo(f"warning: the commands of plugins are missing: {error}", err=True)
            return {}
        return {str(command.name): command for commands in offered for command in commands}


def _read(path: Path) -> LoadedConfig:
    settings, _ = load_settings(path)
    return LoadedConfig(
        backends=settings.backends,
        parse=settings.make_identifiers().parse_any,
        ttl=settings.cache.ttl,
        negative_ttl=settings.cache.negative_ttl,
        reference_values=reference_values(path, os.environ),
    )


_TOOLS = CommandTools(config_option, json_option, _read, exit_on_error)

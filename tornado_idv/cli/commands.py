"""The group of all commands, which imports a command when it is used."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tornado_idv.cli.common import config_option, exit_on_error, json_option
from tornado_idv.cli.examples import add_examples
from tornado_idv.cli.standard_streams import print_message
from tornado_idv.interfaces.commands import CommandTools, Exit, LoadedConfig
from tornado_idv.registry import plugin_manager

_COMMANDS = {
    "cache": ("running.operations", "Show or purge the cache of the running service."),
    "check": ("check", "Report what is wrong with config.yaml, or what would run."),
    "drill": ("drill", "Check that a program survives an outage of this service."),
    "explain": ("running.operations", "Show how each backend of the running service responds."),
    "health": ("running.operations", "Report whether the running service is ready."),
    "init": ("init", "Write a starter configuration and a key into FOLDER."),
    "keys": ("keys.commands", "Issue, rotate and revoke the keys in the key store."),
    "lookup": ("lookup", "Look a user up in the configured backends."),
    "openapi": ("check", "Print the OpenAPI document of the API with this configuration."),
    "plugins": ("check", "List the kinds of backend that the installed plugins offer."),
    "record": ("fixtures.commands", "Write a fixture of users of a live directory."),
    "reload": ("running.operations", "Reload the configuration of the running service."),
    "schema": ("check", "Print the JSON Schema of config.yaml."),
    "serve": ("running.serve", "Answer lookups over HTTP until SIGTERM."),
    "status": ("running.operations", "Show what the running service does."),
    "users": ("users.commands", "Import, export, count and compare the users of backends."),
    "verify-fixture": ("fixtures.commands", "Compare a fixture with the live directory."),
}
"""The module of each built-in command, and its summary."""
_WINDOWS = (
    "tornado-idv does not run on Windows: uvloop and POSIX signals are missing there; run it in "
    "WSL 2 or in a container"
)


class Commands(click.Group):
    """Our commands, and those of plugins, which are loaded only when one may be theirs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_COMMANDS, *self._of_plugins()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found: click.Command | None
        if cmd_name in _COMMANDS:
            module = import_module(f"tornado_idv.cli.{_COMMANDS[cmd_name][0]}")
            found = getattr(module, cmd_name.replace("-", "_"))
        else:
            found = super().get_command(ctx, cmd_name) or self._of_plugins().get(cmd_name)
        if found is not None:
            add_examples(found, cmd_name)
        return found

    def get_help(self, ctx: click.Context) -> str:
        add_examples(self)
        return super().get_help(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            # click knows of those that are imported only.
            raise click.NoSuchCommand(
                error.command_name, possibilities=self.list_commands(ctx), ctx=ctx
            ) from None

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _exit_on_interrupt():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        if sys.platform == "win32":
            print_message(_WINDOWS)
            sys.exit(Exit.UNDETERMINED)
        with _exit_on_interrupt():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 click's way
        """List the commands without importing ours, which takes longer than all the rest."""
        rows = {name: each.get_short_help_str() for name, each in self._of_plugins().items()}
        rows |= {name: summary for name, (_, summary) in _COMMANDS.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows.items()))

    def _of_plugins(self) -> dict[str, click.Command]:
        try:
            offered = plugin_manager().hook.idv_commands(tools=_TOOLS)
        except Exception as error:  # noqa: BLE001 - our own commands work without plugins
            click.echo(f"warning: the commands of plugins are missing: {error}", err=True)
            return {}
        return {str(command.name): command for commands in offered for command in commands}


@contextmanager
def _exit_on_interrupt() -> Iterator[None]:
    """Exit with 130 after Ctrl-C; with click's own code, 1, it would mean "no"."""
    try:
        yield
    except KeyboardInterrupt:
        print_message("\ninterrupted")
        sys.exit(128 + signal.SIGINT)


def _read(path: Path) -> LoadedConfig:
    from tornado_idv.cli.load_config import read_config  # noqa: PLC0415 - not for `--help`

    return read_config(path)


_TOOLS = CommandTools(config_option, json_option, _read, exit_on_error)

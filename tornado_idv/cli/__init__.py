"""The ``tornado-idv`` command. Each command is imported when it is used."""

from __future__ import annotations

import os
import signal
import sys

# The first process of a container has no default action for signals: without a handler, they are
# lost. The handlers are set here because the imports below take most of the start. They exit
# immediately, because the service has no requests to finish.
if os.path.basename(sys.argv[0]) in ("tornado-idv", "__main__.py") and "serve" in sys.argv[1:2]:  # noqa: PTH119 - pathlib takes 5 ms
    for _number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_number, lambda *_: os._exit(0))
if hasattr(signal, "pthread_sigmask"):  # missing on Windows
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # blocked by the container image

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from tornado_idv.cli.common import config_option, exit_on_error, json_option
from tornado_idv.cli.standard_streams import OutputError, open_streams, print_message
from tornado_idv.errors import format_traceback
from tornado_idv.features import FEATURES
from tornado_idv.interfaces.command_tools import CommandTools, Exit
from tornado_idv.registry import plugin_manager

if TYPE_CHECKING:
    from tornado_idv.interfaces.backend import BackendOptions

# Plugins of pydantic would see secrets of the configuration, and the search for them takes 7 ms
# (CPython 3.11). It happens with the first import of a model, after this line.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

_COMMANDS = {
    "serve": ("tornado_idv.cli.serve:serve", "Answer lookups over HTTP until SIGTERM."),
    **{name: each for feature in FEATURES for name, each in feature.commands.items()},
}
"""Import path and summary of each built-in command."""
_REMOVED = {
    "record": "users export --format yaml, or lookup --json for each user",
    "verify-fixture": "users export --format yaml, or lookup --json for each user, and diff",
}
"""Replacements of removed commands."""
_EPILOG = """\b
Examples:
  tornado-idv init my-directory
  tornado-idv serve --config my-directory/config.yaml
  tornado-idv COMMAND --help

\b
Completion, for bash (zsh and fish: write that name instead of bash):
  eval "$(_TORNADO_IDV_COMPLETE=bash_source tornado-idv)\""""


@contextmanager
def _exit_on_failure() -> Iterator[None]:
    """After an interrupt or an unexpected error, exit with a code other than 1: 1 means "no"."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        print_message("\ninterrupted")
        sys.exit(128 + signal.SIGINT)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit:
        raise
    except OutputError as error:
        if not error.is_closed:
            print_message(str(error))
        sys.exit(Exit.UNDETERMINED)
    except Exception as error:  # noqa: BLE001 - Python, and click for EPIPE, would exit with 1
        if isinstance(error, FileNotFoundError) and error.filename is None:
            print_message("the current folder was removed; change to another one")
        else:
            print_message(f"unexpected error:\n{format_traceback(error)}", "error")
        sys.exit(Exit.UNDETERMINED)


class Commands(click.Group):
    """The built-in commands and the commands of plugins.

    Built-in commands have only a summary until they are used. Plugins are loaded for the list of
    commands, and for a command that is not built in.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        for name, (_, summary) in _COMMANDS.items():
            self.add_command(click.Command(name, short_help=summary))

    @_exit_on_failure()  # click has other messages and exit codes
    def main(self, *args: Any, **extra: Any) -> Any:
        open_streams()
        try:
            return super().main(*args, **extra)
        finally:
            sys.stdout.flush()

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._add_those_of_plugins()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            self.add_command(resolve_name(_COMMANDS[cmd_name][0]))
        elif cmd_name not in self.commands:
            self._add_those_of_plugins()
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in _REMOVED and not ctx.resilient_parsing:
            ctx.fail(f"{cmd_name} was removed in 1.0; use {_REMOVED[cmd_name]}")
        return command

    @_exit_on_failure()  # plugins are loaded for the help
    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        return super().make_context(*args, **extra)

    @_exit_on_failure()
    def invoke(self, ctx: click.Context) -> Any:
        if sys.platform == "win32":
            print_message(
                "tornado-idv does not run on Windows: uvloop and POSIX signals are missing there; "
                "run it in WSL 2 or in a container"
            )
            sys.exit(Exit.UNDETERMINED)
        return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, but do not import the built-in ones, because imports are slow."""
        names = self.list_commands(ctx)
        rows = [(name, self.commands[name].get_short_help_str(limit=100)) for name in names]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _add_those_of_plugins(self) -> None:
        try:
            offered = plugin_manager().hook.idv_commands(tools=_TOOLS)
        except Exception as error:  # noqa: BLE001 - built-in commands work without plugins
            click.echo(f"warning: the commands of plugins are missing: {error}", err=True)
            return
        for command in chain.from_iterable(offered):
            # A default of a plugin may be a secret from the environment.
            command.context_settings.setdefault("show_default", False)
            self.commands.setdefault(str(command.name), command)


def _read_backends(path: Path) -> Sequence[BackendOptions]:
    from tornado_idv.cli.backends import load_settings  # noqa: PLC0415 - not for `--help`

    return load_settings(path)[0].backends


_TOOLS = CommandTools(config_option, json_option, _read_backends, exit_on_error)


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog=_EPILOG,
)
@click.version_option(package_name="tornado-idv", message="%(prog)s %(version)s")
def main() -> None:
    """Does this user exist, and who is it? A lookup service over HTTP and JSON.

    Begin with `tornado-idv init`, then `tornado-idv serve`.

    Exit codes: 0 done; 1 the answer is no (not found, check failed); 2 wrong use;
    3 could not be determined; 130 interrupted by Ctrl-C. For serve, see `serve --help`.
    """

"""The configured backends for commands, and their error reports."""

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pluggy

from tornado_idv.cli.common import RefusedError, exit_on_error, mute_own_logger
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.errors import LookupFailed, StartError
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.logs.handlers import keep_out_secrets
from tornado_idv.registry import installed_kinds, plugin_manager


def load_settings(path: Path) -> tuple[Settings, pluggy.PluginManager]:
    """Load the settings in a file. Return them with the manager of plugins.

    Raises `StartError`, and its subclass `ConfigError` with all problems.
    """
    manager = plugin_manager()
    return ConfigFile.read(path).load(installed_kinds(manager), os.environ), manager


def backend_named(backends: Iterable[BackendOptions], name: str) -> BackendOptions:
    """Return a backend's options. Raises `click.UsageError` for an unknown name."""
    by_name = {each.name: each for each in backends}
    if name not in by_name:
        raise click.UsageError(f"no backend has the name {name}; there are: {', '.join(by_name)}")
    return by_name[name]


@contextmanager
def reporting(name: str = "", *, as_json: bool = False) -> Iterator[None]:
    """Print an `IdvError` with the name of the backend, and exit with the error's code.

    SIGTERM and SIGHUP (a closed terminal, unless with nohup) raise `SystemExit`, so the command
    rolls back its changes, and removes its temporary files.
    """
    keep_out_secrets()
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, lambda number, _: sys.exit(128 + number))
    with (
        exit_on_error(Exit.UNDETERMINED, as_json=as_json, other_codes={RefusedError: Exit.NO}),
        mute_own_logger(),
    ):
        try:
            yield
        except LookupFailed as error:
            error.backend = error.backend or name or None
            raise
        except OSError as error:
            if error.filename is None:
                raise  # an error of standard output
            raise StartError(f"{error.filename}: cannot be used: {error.strerror}") from None

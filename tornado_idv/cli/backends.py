"""The configured backends and their users for commands, and their error reports."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import pluggy

from tornado_idv.cli.common import RefusedError, exit_on_error, mute_own_logger
from tornado_idv.config.load import load
from tornado_idv.config.settings import Settings
from tornado_idv.errors import LookupFailed, StartError
from tornado_idv.identifiers import Identifiers
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.interfaces.user_store import UserStore
from tornado_idv.logs.handlers import keep_out_secrets
from tornado_idv.model import User
from tornado_idv.registry import installed_kinds, load_class, plugin_manager


def load_settings(path: Path) -> tuple[Settings, pluggy.PluginManager]:
    """Load the settings in a file. Return them with the manager of plugins.

    Raises `StartError`, and its subclass `ConfigError` with all problems.
    """
    manager = plugin_manager()
    return load(path, installed_kinds(manager), os.environ), manager


def backend_named(backends: Iterable[BackendOptions], name: str) -> BackendOptions:
    """Return a backend's options. Raises `click.UsageError` for an unknown name."""
    by_name = {each.name: each for each in backends}
    if name not in by_name:
        names = ", ".join(by_name)
        raise click.UsageError(f"no backend has the name {name}; there are: {names}")
    return by_name[name]


@dataclass(frozen=True, slots=True)
class Stores:
    """The configured backends."""

    identifiers: Identifiers
    kinds: Kinds
    backends: Sequence[BackendOptions]

    @classmethod
    def of_config(cls, path: Path) -> Stores:
        """Load a configuration. Raises `StartError`."""
        settings, manager = load_settings(path)
        return cls(settings.make_identifiers(), installed_kinds(manager), settings.backends)

    def options(self, name: str) -> BackendOptions:
        """Return a backend's options. Raises `click.UsageError` for an unknown name."""
        return backend_named(self.backends, name)

    def store(self, name: str) -> UserStore:
        """Return the user store of a backend. Raises `click.UsageError` if its kind has none."""
        options = self.options(name)
        store: UserStore | None = load_class(self.kinds.backends[options.kind]).user_store(options)
        if store is None:
            raise click.UsageError(
                f"the backend {name} is of the kind {options.kind}: this command cannot use it"
            )
        return store

    @contextmanager
    def records(self, name: str) -> Iterator[Iterator[User]]:
        """Yield an iterator of all users of a backend. On exit, close its connection."""
        users = self.store(name).records()
        try:
            yield users
        finally:  # otherwise the garbage collector closes it, maybe in another thread
            if isinstance(users, Generator):
                users.close()


@contextmanager
def reporting(name: str = "", *, as_json: bool = False) -> Iterator[None]:
    """Print an `IdvError` with the name of the backend, and exit with its code.

    SIGTERM raises `SystemExit`, so the command rolls back its changes.
    """
    keep_out_secrets()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
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

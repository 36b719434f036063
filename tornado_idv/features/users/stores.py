"""The configured backends, and the stores of their users."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tornado_idv.cli.backends import backend_named, load_settings
from tornado_idv.interfaces.user_store import UserStore
from tornado_idv.model import User
from tornado_idv.registry import installed_kinds, load_class


class Stores:
    """The backends of a configuration file, with access to their users. Raises `StartError`."""

    def __init__(self, path: Path) -> None:
        settings, manager = load_settings(path)
        self.identifiers, self.backends = settings.make_identifiers(), settings.backends
        self.kinds = installed_kinds(manager)

    def store(self, name: str) -> UserStore:
        """Return the user store of a backend. Raises `click.UsageError` if its kind has none."""
        options = backend_named(self.backends, name)
        store: UserStore | None = load_class(self.kinds.backends[options.kind]).user_store(options)
        if store is None:
            raise click.UsageError(
                f"the backend {name} is of the kind {options.kind}: this command cannot use it"
            )
        return store

    @contextmanager
    def records(self, name: str) -> Iterator[Iterator[User]]:
        """Yield an iterator of all users of a backend. On exit, close the iterator."""
        users = self.store(name).records()
        try:
            yield users
        finally:  # otherwise the garbage collector closes it, maybe in another thread
            if isinstance(users, Generator):
                users.close()

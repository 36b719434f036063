"""Location of a key store: a file, or what a plugin opens for a URL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pydantic import SecretStr

from tornado_idv.keys.store import KeyDatabase, KeyStore

BUSY_TIMEOUT = 5.0
"""Seconds for which a command waits for another one."""


class KeyStoreLocation(ABC):
    """A place for a key store, for one thread at a time.

    ``setting`` is ``auth.store``: a path, or a URL that may hold a password. ``name`` is how
    messages call the store: never with a password.
    """

    def __init__(self, setting: Path | SecretStr, name: str) -> None:
        self.setting = setting
        self.name = name

    @contextmanager
    def opened(
        self, *, busy_timeout: float = BUSY_TIMEOUT, read_only: bool = False
    ) -> Iterator[KeyStore]:
        """Open the store as `connected` does; raises `KeyStoreError`."""
        with self.connected(busy_timeout=busy_timeout, read_only=read_only) as database:
            yield KeyStore(database, self.name)

    @abstractmethod
    def connected(
        self, *, busy_timeout: float, read_only: bool
    ) -> AbstractContextManager[KeyDatabase]:
        """Connect to the store.

        ``busy_timeout`` is how many seconds to wait for another writer. With ``read_only`` nothing
        is written. A connection may be kept for the next time. Raises
        `KeyStoreError`, and its `MissingKeyStoreError`.
        """

    @abstractmethod
    def create(self) -> bool:
        """Create an empty store, and return whether there was none; raises `KeyStoreError`."""

    def require_one_server(self, timeout: float) -> None:  # noqa: B027 - a file has none
        """Raise `KeyStoreError` if another server than the one in use may be written, too.

        Others have ``timeout`` seconds to respond.
        """

    def warnings(self) -> Sequence[str]:
        """Return what an operator should change in a store that was opened."""
        return ()

    def close(self) -> None:  # noqa: B027 - a file is open only while it is used
        """Close what is kept open between two uses."""

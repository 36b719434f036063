"""Location of a key store: a file or a URL. Plugins implement both."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pydantic import SecretStr

from tornado_idv.errors import KeyStoreError
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.keys.store import KeyDatabase, KeyStore
from tornado_idv.registry import load_class

BUSY_TIMEOUT = 5.0
"""Maximum time that a command waits for another writer, in seconds."""


class KeyStoreLocation(ABC):
    """The location of a key store. Only one thread at a time may use it.

    ``setting`` is ``auth.store``: a path, or a URL, possibly with a password. ``name`` is the name
    of the store in messages, never with a password. If ``overwritten`` is true, keys may have
    changed without a change of the revision. A reader of all keys sets it to false.
    """

    def __init__(self, setting: Path | SecretStr, name: str) -> None:
        self.setting = setting
        self.name = name
        self.overwritten = False

    @contextmanager
    def opened(
        self, *, busy_timeout: float = BUSY_TIMEOUT, read_only: bool = False
    ) -> Iterator[KeyStore]:
        """Open the store; see `connected`. Raises `KeyStoreError`."""
        with self.connected(busy_timeout=busy_timeout, read_only=read_only) as database:
            yield KeyStore(database, self.name)

    @abstractmethod
    def connected(
        self, *, busy_timeout: float, read_only: bool
    ) -> AbstractContextManager[KeyDatabase]:
        """Connect to the store.

        ``busy_timeout`` is the maximum wait for another writer, in seconds. With ``read_only``
        nothing is written. The connection may be kept for the next call. Raises `KeyStoreError`,
        or its subclass `MissingKeyStoreError`.
        """

    @abstractmethod
    def create(self) -> bool:
        """Create an empty store. Return false for an existing store. Raises `KeyStoreError`."""

    def require_one_server(self, timeout: float) -> None:  # noqa: B027 - a file has none
        """Raise `KeyStoreError` if a second server of the store's database accepts writes.

        Other servers have ``timeout`` seconds to respond.
        """

    def warnings(self) -> Sequence[str]:
        """Return advice for the operator about an opened store."""
        return ()

    def close(self) -> None:  # noqa: B027 - a file is open only while it is used
        """Close a connection that was kept for the next call of `connected`."""


def locate_store(setting: Path | SecretStr, kinds: Kinds) -> KeyStoreLocation:
    """Return the location of a key store, without opening it. A path has an empty scheme.

    Raises `KeyStoreError` for a scheme without a plugin, and `StartError` for a broken plugin.
    """
    scheme = "" if isinstance(setting, Path) else setting.get_secret_value().partition("://")[0]
    if scheme not in kinds.key_stores:
        known = ", ".join(f"{each}://" for each in sorted(kinds.key_stores) if each) or "none"
        place = "this URL of a key store" if scheme else "a key store in a file"
        raise KeyStoreError(f"no plugin supports {place}; supported: {known}")
    location: KeyStoreLocation = load_class(kinds.key_stores[scheme])(setting)
    return location

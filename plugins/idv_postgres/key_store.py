"""The key store in a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import SecretStr

from idv_postgres.options import NOT_INSTALLED, Dsn
from tornado_idv import KeyStoreError, KeyStoreLocation

if TYPE_CHECKING:
    from idv_postgres.key_database import KeyDatabase


class PostgresKeyStore(KeyStoreLocation):
    """A key store at a connection URI. The connection stays open until it fails."""

    setting: SecretStr

    def __init__(self, setting: SecretStr) -> None:
        try:
            super().__init__(setting, Dsn.parse(setting.get_secret_value()).name)
        except ValueError as error:
            raise KeyStoreError(str(error)) from None
        try:
            from idv_postgres.key_database import KeyDatabase  # noqa: PLC0415 - imports asyncpg
        except ModuleNotFoundError:
            raise KeyStoreError(NOT_INSTALLED) from None
        self._open = KeyDatabase
        self._database: KeyDatabase | None = None
        self._last = ""

    @contextmanager
    def connected(self, *, busy_timeout: float, read_only: bool) -> Iterator[KeyDatabase]:  # noqa: ARG002 - opening writes nothing
        """Yield the open connection, or a new connection to the primary of the URI."""
        with self._connected(busy_timeout) as database:
            database.check_schema()
            yield database

    def create(self) -> bool:
        """Create the tables in the schema ``idv_keys``. Return false for existing tables."""
        with self._connected() as database:
            return database.create()

    def require_one_server(self, timeout: float) -> None:
        """Raise `KeyStoreError` if the hosts lead to more than one primary."""
        with self._connected() as database:
            names = database.primaries(timeout)
        if len(names) > 1:
            raise KeyStoreError(
                f"{self.name}: {' and '.join(names)} are both primaries, with keys of their own; "
                "stop one of them, or name one host in auth.store"
            )

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    @contextmanager
    def _connected(self, busy_timeout: float = 5.0) -> Iterator[KeyDatabase]:
        if self._database is not None and not self._database.responds():
            self.close()
        if self._database is None:
            self._database = self._open(self.setting, self.name, self._last)
            self._last = self._database.connector.last
        self._database.busy_timeout = busy_timeout
        try:
            yield self._database
        except BaseException:
            self.close()  # the server rolls the transaction back
            raise

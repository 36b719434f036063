"""A connection to the key store: asyncpg for the synchronous code of the key store.

It has an event loop of its own, which runs while a statement does: commands have no other, and the
service reads the key store in a thread.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import count
from typing import Any

import asyncpg
from pydantic import SecretStr

from idv_postgres.database import Connector
from idv_postgres.errors import to_lookup_failed
from tornado_idv import KeyStoreError, MissingKeyStoreError

_TIMEOUT = 3.0
"""Seconds in which the server must answer a statement, beside the time it waits for a lock.

A change of a key is effective that much later if the server hangs meanwhile, and fails over."""
_BATCH_TIMEOUT = 10.0
"""Seconds in which the server must write many rows."""
_PING_TIMEOUT = 1.0
"""Seconds after which a kept connection on which nothing is answered is replaced."""
_CONNECT_TIMEOUT = 2.0
"""Seconds in which each host of the URI must accept a connection."""
_SETTINGS = {
    "application_name": "tornado-idv keys",
    "search_path": "idv_keys",
    # A client that is gone must not keep the others from writing.
    "idle_in_transaction_session_timeout": "60s",
}
_MISSING = (
    "there is no key store in this database; restore it, or create the first one with "
    "tornado-idv keys issue ID --create"
)
_REASONS = {
    "08003": "the connection was lost",
    "42501": "the user of auth.store lacks a permission; docs/keys.md lists what to GRANT",
    "55P03": "the key store is locked by another process",
}
_MISSING_STATES = {"3F000", "42P01"}
"""SQLSTATEs of a missing schema or table."""


class KeyDatabase:
    """An open connection; see the protocol of that name in `tornado_idv`.

    ``busy_timeout`` is for how many seconds a change waits for another one. Raises `KeyStoreError`.
    """

    def __init__(self, dsn: SecretStr, name: str) -> None:
        self.busy_timeout = 0.0
        self.name = name
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        connector = Connector(dsn, timeout=_CONNECT_TIMEOUT, roles=("primary",))
        try:
            self._connection: asyncpg.Connection = self._run(
                connector.connect(server_settings=_SETTINGS)
            )
        except BaseException:
            self._runner.close()
            raise

    def responds(self) -> bool:
        """Return whether the server answers on this connection: it may hang, or be cut off."""
        try:
            self._run(self._connection.execute("SELECT", timeout=_PING_TIMEOUT))
        except KeyStoreError:
            return False
        return True

    def execute(self, sql: str, values: Sequence[object] = ()) -> Iterable[Sequence[Any]]:
        """Run a statement, with ``?`` for each value, and return its rows."""
        work = self._connection.fetch(_numbered(sql), *values, timeout=_TIMEOUT)
        rows: list[asyncpg.Record] = self._run(work)
        return rows

    def executemany(self, sql: str, rows: Iterable[Sequence[object]]) -> object:
        """Run a statement for each row of values."""
        work = self._connection.executemany(_numbered(sql), rows, timeout=_BATCH_TIMEOUT)
        return self._run(work)

    def script(self, sql: str) -> None:
        """Run statements without values."""
        self._run(self._connection.execute(sql, timeout=self.busy_timeout + _TIMEOUT))

    @contextmanager
    def writing(self, lock: str = "SELECT FROM store FOR UPDATE") -> Iterator[None]:
        """Write everything or nothing, with no other writer in between."""
        milliseconds = max(1, int(self.busy_timeout * 1000))
        try:
            self.script(f"BEGIN; SET LOCAL lock_timeout = {milliseconds}; {lock}")
            yield
            self.script("COMMIT")
        except BaseException:
            with suppress(KeyStoreError):
                self.script("ROLLBACK")
            raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Make all reads within see the same state."""
        self.script("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            self.script("COMMIT")

    def check(self) -> None:
        """Do nothing: the server checks its files itself."""

    def close(self) -> None:
        """Close the connection at once; the server rolls back what is not committed."""
        with suppress(KeyStoreError):
            self._run(self._terminate())
        self._runner.close()

    async def _terminate(self) -> None:
        self._connection.terminate()
        await asyncio.sleep(0)  # the loop closes the socket

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._runner.run(work)
        except Exception as error:  # noqa: BLE001 - each is mapped
            raise _key_store_error(error, self.name) from None


@lru_cache(maxsize=64)
def _numbered(sql: str) -> str:
    """Return a statement with ``$1``, ``$2`` and so on in place of each ``?``."""
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", sql)


def _key_store_error(error: Exception, name: str) -> KeyStoreError:
    """Return the error for a person; the server's own message may repeat a value."""
    state = str(getattr(error, "sqlstate", ""))
    if state in _MISSING_STATES:
        return MissingKeyStoreError(f"{name}: {_MISSING}")
    return KeyStoreError(f"{name}: {_REASONS.get(state) or to_lookup_failed(error).reason}")

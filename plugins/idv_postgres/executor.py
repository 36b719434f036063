"""The executor of lookups. It runs statements, and records the roles of servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from idv_postgres.connection import Connection
from idv_postgres.lookups import Lookups, Result
from idv_postgres.options import PostgresOptions
from idv_postgres.standby import Standbys, with_state

_SERVER_SHARE = 0.9
"""The server stops a query after this fraction of ``timeout``. The connection remains usable."""
_BATCH_SHARE = 1 / 3
"""Fraction of ``timeout`` for a query for several values. If it fails, single queries follow."""
_ROLLBACK_SHARE = 1 / 6
"""Fraction of ``timeout`` for a rollback. After this time, the connection is closed."""


class Executor:
    """Runs statements of lookups. ``lookups`` has the statements from the last inspection."""

    def __init__(self, options: PostgresOptions) -> None:
        self._is_prepared, self._timeout = options.prepared_statements, options.timeout
        self._limit = max(1, int(options.timeout * _SERVER_SHARE * 1000))
        self.settings: dict[str, str] = {}
        """The settings of each session. Behind a pooler, `_transaction` sets them instead."""
        if self._is_prepared:
            self.settings = {
                "application_name": "tornado-idv",
                "statement_timeout": str(self._limit),
                "row_security": "off",
                # In other isolation levels, a lookup that waits for a TRUNCATE keeps its older
                # snapshot. A table that was filled again meanwhile is empty in it.
                "default_transaction_isolation": "read committed",
            }
        self.lookups = Lookups({})
        self.standbys = Standbys(options.max_lag)
        self.servers: dict[str, tuple[str, str | None]] = {}
        """For each address, its role, and why its "not found" is not trusted (or ``None``)."""

    async def run(self, connection: Connection, sql: str, value: str | list[str]) -> Result:
        """Run a lookup for one or several values. For several, it may raise `TimeoutError`.

        If a query calls a function and finds no row, it is repeated twice in one transaction. After
        a wait for a TRUNCATE, a STABLE function still reads the snapshot from before the wait. The
        last query gets a new snapshot, and already has the lock. A foreign server keeps a snapshot
        until its transaction ends, so the first query has a transaction of its own.
        """
        is_batch, may_repeat = isinstance(value, list), sql in self.lookups.repeated
        if self._is_prepared:
            result = await self._fetch(connection, sql, value)
        else:
            async with self._transaction(connection):
                result = await self._fetch(connection, sql, value)
        # In a batch, only some rows may be missing.
        if may_repeat and (is_batch or not result.rows):
            async with self._transaction(connection):
                await self._fetch(connection, sql, value)
                result = await self._fetch(connection, sql, value)
        return result

    @asynccontextmanager
    async def _transaction(self, connection: Connection) -> AsyncIterator[None]:
        """Run a block as a transaction with its own settings.

        A pooler may run each transaction in another session, so settings of a session are lost.
        """
        path = self.lookups.search_path
        try:
            await connection.execute(
                "BEGIN ISOLATION LEVEL READ COMMITTED; "
                f"SET LOCAL statement_timeout = {self._limit}; "
                f"SET LOCAL row_security = off{path and f'; SET LOCAL search_path TO {path}'}"
            )
            yield
            await connection.execute("COMMIT")
        except Exception:
            try:
                # After a timeout, the rollback waits until the server has stopped the statement.
                async with asyncio.timeout(self._timeout * _ROLLBACK_SHARE):
                    await connection.execute("ROLLBACK")
            except Exception:  # noqa: BLE001 - the connection may be lost
                connection.terminate()
            raise

    async def _fetch(self, connection: Connection, sql: str, value: str | list[str]) -> Result:
        """Run a statement. If the server may be a standby that is behind, query its state, too."""
        is_batch = isinstance(value, list)
        limit = self._timeout * _BATCH_SHARE if is_batch else None
        fetch = connection.fetch_prepared if self._is_prepared else connection.fetch
        is_certain = connection.standby is None or self.standbys.is_certain(connection.standby)
        # Behind a pooler, another server may run the next statement, so no state is certain.
        if self._is_prepared and is_certain:
            return Result(await fetch(sql, value, timeout=limit), origin=connection.server)
        # The rows may be too old at first, and new enough in a second statement.
        for _ in range(2):
            start = self.standbys.start()
            rows = await fetch(with_state(sql, is_batch=is_batch), value, timeout=limit)
            result = self.standbys.finish(start, rows)
            if not result.may_repeat:
                break
        connection.standby = result.standby
        role = "primary" if result.standby is None else "standby"
        reason = result.reason and f"{connection.address} is a standby that {result.reason}"
        self.servers[connection.address] = role, reason
        return result._replace(reason=reason, origin=connection.server)

"""All users of a PostgreSQL table at once, for ``tornado-idv users``: the only code that writes it.

Changes are copied into a temporary table, and applied from there in the same transaction. Lookups
see the old rows until its commit: nothing is truncated.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import asyncpg
from asyncpg.transaction import Transaction

from idv_postgres.database import Connector
from idv_postgres.errors import is_disconnect, to_lookup_failed
from idv_postgres.options import PostgresOptions
from idv_postgres.schema import quoted
from idv_postgres.staging import ImportSql
from idv_postgres.table import read_columns, select_users, to_user
from tornado_idv import (
    Broken,
    StoredRow,
    Unavailable,
    User,
    UserStore,
    UserTransaction,
)

T = TypeVar("T")

_CONNECT_TIMEOUT = 10.0
_CLOSE_TIMEOUT = 1.0
_ROWS_AT_ONCE = 5000
_ROWS_BETWEEN_PAUSES = 200
# Between statements the list is compared. PostgreSQL has transaction_timeout from version 17 on.
_SETTINGS = """
SET LOCAL lock_timeout = '10s';
SET LOCAL row_security = off;
SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN (
    'statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout'
)
"""
_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_UNCERTAIN = (
    "the server did not confirm the commit, and whether the users were changed could not be "
    "determined; import them again"
)


class PostgresUserStore(UserStore):
    """The users in the table of one database.

    Connects as notifications do: to ``notify.dsn``, if it is given, and never to a standby.
    """

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._connector = Connector(
            options.primary_dsn, timeout=_CONNECT_TIMEOUT, roles=("primary",)
        )
        self.max_removed = options.max_removed

    def count(self) -> int:
        """Return the number of rows."""

        async def count() -> int:
            async with self._reading() as connection:
                columns = await read_columns(connection, self._options)
                return int(await connection.fetchval(ImportSql(self._options, columns).count))

        with asyncio.Runner() as runner, _mapped_errors():
            return runner.run(count())

    def records(self) -> Iterator[User]:
        """Yield all users, from one transaction."""

        async def chunks() -> AsyncGenerator[list[asyncpg.Record], None]:
            options = self._options
            async with self._reading() as connection:
                columns = await read_columns(connection, options)
                key = f'u.{quoted(options.columns.nickname)}::text COLLATE "C"'
                order = f"lower({key})" if options.folds_nicknames else key
                select = f"{select_users(options, columns)} ORDER BY {order}"
                async for rows in _chunks(connection, select):
                    yield rows

        with asyncio.Runner() as runner, _mapped_errors():
            yield from map(to_user, _run_all(runner, chunks()))

    @contextmanager
    def transaction(self, *, in_place: bool) -> Iterator[PostgresTransaction]:  # noqa: ARG002
        """Change the users in one transaction."""
        with asyncio.Runner() as runner:
            with _mapped_errors(self._options.table):
                connection, transaction = runner.run(self._begin())
            # Without a commit the server rolls back as the connection is closed: after a signal
            # during COPY, it cannot send a ROLLBACK, and the error would hide the signal.
            try:
                changes = PostgresTransaction(self, self._options, runner, connection, transaction)
                yield changes
            finally:
                connection.terminate()

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[asyncpg.Connection]:
        connection, transaction = await self._begin(readonly=True)
        try:
            yield connection
            await transaction.commit()
            await _close(connection)
        finally:
            connection.terminate()

    async def _begin(self, *, readonly: bool = False) -> tuple[asyncpg.Connection, Transaction]:
        connection = await self._connector.connect(statement_cache_size=0)
        try:
            # With any other isolation, statements after a lock see the rows of before it.
            transaction = connection.transaction(isolation="read_committed", readonly=readonly)
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                await transaction.start()
                await connection.execute(_SETTINGS)
        except BaseException:
            connection.terminate()
            raise
        return connection, transaction


class PostgresTransaction(UserTransaction):
    """The change of a table, which is locked from the beginning."""

    def __init__(
        self,
        store: PostgresUserStore,
        options: PostgresOptions,
        runner: asyncio.Runner,
        connection: asyncpg.Connection,
        transaction: Transaction,
    ) -> None:
        self._ignore_signals, self._options = store.ignore_signals, options
        self._runner, self._connection = runner, connection
        self._transaction = transaction

        async def lock() -> ImportSql:
            sql = ImportSql(options, await read_columns(connection, options))
            await connection.execute(sql.create)
            await connection.execute(sql.lock)
            return sql

        self._sql = self._run(lock())
        self.has_profile_url = "profile_url" in self._sql.columns

    def stored(self) -> Iterator[StoredRow]:
        """Yield all rows, as text."""
        with _mapped_errors(self._options.table):
            yield from _run_all(self._runner, _chunks(self._connection, self._sql.stored))

    def delete(self, keys: Iterable[object]) -> int:
        """Delete rows by one statement."""
        return self._run(self._apply(self._sql.delete, ["key"], ((key,) for key in keys)))

    def update(self, fields: Sequence[str], rows: Iterable[StoredRow]) -> int:
        """Update rows by one statement."""
        return self._run(self._apply(self._sql.update(fields), [*fields, "key"], rows))

    def insert(self, fields: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
        """Add rows by one statement."""
        return self._run(self._apply(self._sql.insert(fields), fields, rows))

    def commit(self) -> None:
        """Notify the services and commit."""
        notify, is_committing = self._options.notify, False

        async def commit() -> None:
            nonlocal is_committing
            if notify is not None:
                query = "SELECT pg_notify($1::text, '*')"
                await self._connection.execute(query, notify.channel)
            is_committing = True
            await self._transaction.commit()
            self._ignore_signals()
            await _close(self._connection)

        with _mapped_errors(self._options.table):
            try:
                self._runner.run(commit())
            except BaseException as error:  # a signal, too
                is_refused = isinstance(error, asyncpg.PostgresError) and not is_disconnect(error)
                if is_committing and not is_refused:
                    raise Unavailable(_UNCERTAIN) from None
                raise

    async def _apply(
        self, statement: str, columns: Sequence[str], rows: Iterable[Sequence[object]]
    ) -> int:
        """Stage rows, and return how many the statement has changed, the end of its command tag."""
        connection = self._connection

        async def pausing() -> AsyncIterator[Sequence[object]]:
            for number, row in enumerate(rows):
                if number % _ROWS_BETWEEN_PAUSES == 0:
                    await asyncio.sleep(0)  # let a signal end the import
                yield row

        await connection.execute("TRUNCATE idv_staged")
        await connection.copy_records_to_table("idv_staged", records=pausing(), columns=columns)
        await connection.execute(self._sql.analyze)
        return int((await connection.execute(statement)).split()[-1])

    def _run(self, change: Coroutine[Any, Any, T]) -> T:
        with _mapped_errors(self._options.table):
            return self._runner.run(change)


async def _chunks(
    connection: asyncpg.Connection, select: str
) -> AsyncGenerator[list[asyncpg.Record], None]:
    cursor = await connection.cursor(select)
    while rows := await cursor.fetch(_ROWS_AT_ONCE):
        yield rows


def _run_all(
    runner: asyncio.Runner, chunks: AsyncGenerator[list[asyncpg.Record], None]
) -> Iterator[asyncpg.Record]:
    with suppress(StopAsyncIteration):
        try:
            while True:
                yield from runner.run(chunks.__anext__())
        finally:
            runner.run(chunks.aclose())


async def _close(connection: asyncpg.Connection) -> None:
    with suppress(Exception):  # nothing that fails now changes the result
        await connection.close(timeout=_CLOSE_TIMEOUT)


@contextmanager
def _mapped_errors(table: str = "") -> Iterator[None]:
    """Raise failures without the server's message, which may quote a value."""
    try:
        yield
    except _ERRORS as error:
        constraint = getattr(error, "constraint_name", None)
        if isinstance(error, asyncpg.NotNullViolationError):  # which has no name
            constraint = f"NOT NULL of {error.column_name}"
        failure: Exception = to_lookup_failed(error)
        if constraint:
            failure = Broken(
                f"the table refuses the users: they violate the constraint {constraint}"
            )
        elif table and isinstance(error, asyncpg.InsufficientPrivilegeError):
            failure = Broken(
                "the user of the dsn may not write; GRANT SELECT, INSERT, UPDATE, DELETE ON "
                f"{table} and, on the database, TEMPORARY to it (and, for row-level security, "
                "ALTER ROLE … BYPASSRLS), or use another configuration for imports"
            )
        raise failure from None

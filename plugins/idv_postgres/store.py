"""All users of a PostgreSQL table at once, for ``tornado-idv users``: the only code that writes it.

Changes are copied into a temporary table, and applied from there in the same transaction. Lookups
see the old rows until its commit: nothing is truncated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import asyncpg
from asyncpg.transaction import Transaction

from idv_postgres.database import Connector
from idv_postgres.errors import is_disconnect, to_lookup_failed
from idv_postgres.lookups import Column, read_columns, select_users, to_user
from idv_postgres.options import PostgresOptions, quoted
from tornado_idv import Broken, StoredRow, Unavailable, User, UserStore, UserTransaction

T = TypeVar("T")

_CONNECT_TIMEOUT = 10.0
_CLOSE_TIMEOUT = 1.0
_ROWS_AT_ONCE = 5000
_ROWS_BETWEEN_PAUSES = 200
_FIELDS = ("nickname", "card_number", "plan", "profile_url")
# Between statements the list is compared. PostgreSQL has transaction_timeout from version 17 on.
_SETTINGS = """
SET LOCAL lock_timeout = '10s';
SET LOCAL row_security = off;
SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN (
    'statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout'
)
"""
# Other writers are locked out; lookups continue.
_BEGIN = """
SET LOCAL work_mem = '64MB';
CREATE TEMPORARY TABLE idv_staged (
    nickname text, card_number text, plan text, profile_url text, key text COLLATE "C"
) ON COMMIT DROP;
LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE
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
        self.options = options
        self._connector = Connector(
            options.primary_dsn, timeout=_CONNECT_TIMEOUT, roles=("primary",)
        )
        self.max_removed = options.max_removed

    def count(self) -> int:
        """Return the number of rows."""
        with self._reading() as (runner, connection, _):
            query = f"SELECT count(*) FROM {self.options.quoted_table}"  # noqa: S608 - quoted
            return int(runner.run(connection.fetchval(query)))

    def records(self) -> Iterator[User]:
        """Yield all users, from one transaction."""
        options = self.options
        key = f'u.{quoted(options.columns.nickname)}::text COLLATE "C"'
        order = f"lower({key})" if options.folds_nicknames else key
        with self._reading() as (runner, connection, columns):
            select = f"{select_users(options, columns)} ORDER BY {order}"
            yield from map(to_user, _rows(runner, connection, select))

    @contextmanager
    def transaction(self, *, in_place: bool) -> Iterator[PostgresTransaction]:  # noqa: ARG002
        """Change the users in one transaction."""
        with asyncio.Runner() as runner:
            with _mapped_errors(self.options.table):
                connection, transaction = runner.run(self._begin())
            # Without a commit the server rolls back as the connection is closed: after a signal
            # during COPY, it cannot send a ROLLBACK, and the error would hide the signal.
            try:
                yield PostgresTransaction(self, runner, connection, transaction)
            finally:
                # What then fails in a task that a signal has left is no message.
                runner.get_loop().set_exception_handler(lambda *_: None)
                connection.terminate()

    @contextmanager
    def _reading(self) -> Iterator[tuple[asyncio.Runner, asyncpg.Connection, dict[str, Column]]]:
        with asyncio.Runner() as runner, _mapped_errors():
            connection, transaction = runner.run(self._begin(readonly=True))
            try:
                yield runner, connection, runner.run(read_columns(connection, self.options))
                runner.run(transaction.commit())
                runner.run(_close(connection))
            finally:
                connection.terminate()

    async def _begin(self, *, readonly: bool = False) -> tuple[asyncpg.Connection, Transaction]:
        connection = await self._connector.connect()
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
        runner: asyncio.Runner,
        connection: asyncpg.Connection,
        transaction: Transaction,
    ) -> None:
        self._store, self._runner = store, runner
        self._connection, self._transaction = connection, transaction
        options, names = store.options, store.options.columns
        self._table = options.quoted_table
        columns = self._run(read_columns(connection, options))
        self._run(connection.execute(_BEGIN.format(self._table)))
        own = (names.nickname, names.card_number, names.plan, names.profile_url or "profile_url")
        self._columns = {
            field: columns[name]
            for field, name in zip(_FIELDS, own, strict=True)
            if name in columns
        }
        self.has_profile_url = "profile_url" in self._columns
        self._texts = {
            field: f"u.{quoted(each.name)}::text" for field, each in self._columns.items()
        }
        # The nickname of a user; a row without one is found by its card number.
        nickname, card_number = self._texts["nickname"], self._texts["card_number"]
        self._key = f"coalesce({nickname}, chr(31) || {card_number}, '') COLLATE \"C\""

    def stored(self) -> Iterator[StoredRow]:
        """Yield all rows, as text."""
        values = [self._texts.get(field, "NULL") for field in _FIELDS]
        query = f"SELECT {', '.join(values)}, {self._key} FROM {self._table} AS u"  # noqa: S608 - quoted
        with _mapped_errors(self._store.options.table):
            yield from _rows(self._runner, self._connection, query)

    def delete(self, keys: Iterable[object]) -> int:
        """Delete rows by one statement."""
        statement = (
            f"DELETE FROM {self._table} AS u USING idv_staged AS s WHERE {self._key} = s.key"  # noqa: S608 - quoted
        )
        return self._run(self._apply(statement, ["key"], ((key,) for key in keys)))

    def update(self, fields: Sequence[str], rows: Iterable[StoredRow]) -> int:
        """Update rows by one statement."""
        pairs = (f"{quoted(self._columns[each].name)} = {self._value(each)}" for each in fields)
        statement = (
            f"UPDATE {self._table} AS u SET {', '.join(pairs)} FROM idv_staged AS s "  # noqa: S608 - quoted
            f"WHERE {self._key} = s.key"
        )
        return self._run(self._apply(statement, [*fields, "key"], rows))

    def insert(self, fields: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
        """Add rows by one statement.

        Card numbers come in no order, while nicknames often do: entries that follow each other
        are inserted into an index faster.
        """
        names = ", ".join(quoted(self._columns[field].name) for field in fields)
        statement = (
            f"INSERT INTO {self._table} ({names}) SELECT {', '.join(map(self._value, fields))} "  # noqa: S608 - quoted
            'FROM idv_staged AS s ORDER BY s.card_number COLLATE "C"'
        )
        return self._run(self._apply(statement, fields, rows))

    def _value(self, field: str) -> str:
        """Return the staged value; text is assigned to every type but an enum without a cast."""
        column = self._columns[field]
        return f"s.{field}::{column.type_sql}" if column.is_enum else f"s.{field}"

    def commit(self) -> None:
        """Notify the services and commit."""
        notify, is_committing = self._store.options.notify, False

        async def commit() -> None:
            nonlocal is_committing
            if notify is not None:
                query = "SELECT pg_notify($1::text, '*')"
                await self._connection.execute(query, notify.channel)
            is_committing = True
            await self._transaction.commit()
            self._store.ignore_signals()
            await _close(self._connection)

        with _mapped_errors(self._store.options.table):
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
        # Without statistics the planner would take it for small, and use nested loops.
        await connection.execute("ANALYZE idv_staged")
        return int((await connection.execute(statement)).split()[-1])

    def _run(self, change: Coroutine[Any, Any, T]) -> T:
        with _mapped_errors(self._store.options.table):
            return self._runner.run(change)


def _rows(
    runner: asyncio.Runner, connection: asyncpg.Connection, select: str
) -> Iterator[asyncpg.Record]:
    async def open_cursor() -> Any:
        return await (await connection.prepare(select)).cursor()

    cursor = runner.run(open_cursor())
    while rows := runner.run(cursor.fetch(_ROWS_AT_ONCE)):
        yield from rows


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

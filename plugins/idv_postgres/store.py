"""The user store of a PostgreSQL table, for ``tornado-idv users``. Only this module writes users.

Changes are copied into a temporary table, and applied from it in the same transaction. The table of
users is not truncated, so lookups see the old rows until the commit.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg

from idv_postgres.connection import Connection, Connector
from idv_postgres.errors import is_disconnect, to_lookup_failed
from idv_postgres.lookups import Column, read_columns, select_users, to_user
from idv_postgres.options import PostgresOptions, quoted
from idv_postgres.relation import SET_SEARCH_PATH
from tornado_idv import Broken, StoredRow, Unavailable, User, UserStore, UserTransaction

T = TypeVar("T")

_CONNECT_TIMEOUT = 10.0
_ROWS_BETWEEN_PAUSES = 200
_FIELDS = ("nickname", "card_number", "plan", "profile_url")
# The transaction is idle while the list is compared. PostgreSQL 17 added transaction_timeout.
# In a session of a pooler, other clients leave a search_path and temporary tables.
_SETTINGS = f"""
SET LOCAL lock_timeout = '10s'; SET LOCAL row_security = off;
SET LOCAL search_path TO DEFAULT; {SET_SEARCH_PATH};
SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN (
    'statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout'
)
"""  # noqa: S608 - constants
_STAGED = "pg_temp.idv_staged AS s"
# The lock excludes other writers, but no lookups.
_BEGIN = """
SET LOCAL work_mem = '64MB';
CREATE TEMPORARY TABLE idv_staged (
    nickname text, card_number text, plan text, profile_url text, key text COLLATE "C"{}
) ON COMMIT DROP;
LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE
"""
_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class PostgresUserStore(UserStore):
    """The users in one table. The store uses ``notify.dsn`` or ``dsn``, but never a standby."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self.max_removed = options.max_removed

    def count(self) -> int:
        with _session(self._options, readonly=True) as session:
            query = f"SELECT count(*) FROM {self._options.quoted_table}"  # noqa: S608 - quoted
            return int(session.run(session.connection.fetchval(query)))

    def records(self) -> Iterator[User]:
        """Yield all users in one transaction."""
        options = self._options
        key = f'u.{quoted(options.columns.nickname)}::text COLLATE "C"'
        order = f"lower({key})" if options.folds_nicknames else key
        with _session(options, readonly=True) as session:
            select = f"{select_users(options, session.columns)} ORDER BY {order}"
            yield from map(to_user, session.rows(select))

    @contextmanager
    def transaction(self, *, in_place: bool) -> "Iterator[PostgresTransaction]":  # noqa: ARG002
        with _session(self._options) as session:
            yield PostgresTransaction(self._options, session)


class PostgresTransaction(UserTransaction):
    """A transaction that changes the table. It locks the table at its start."""

    def __init__(self, options: PostgresOptions, session: "_Session") -> None:
        self._session, self._notify = session, options.notify
        self._table, names = options.quoted_table, options.columns
        own = (names.nickname, names.card_number, names.plan, names.profile_url or "profile_url")
        pairs = zip(_FIELDS, map(session.columns.get, own), strict=True)
        self._columns = {field: column for field, column in pairs if column}
        # An assignment to a column of the type name would cut the text, without an error.
        short = [field for field, column in self._columns.items() if column.type == "name"]
        limits = "".join(f", CHECK (octet_length({field}) < 64)" for field in short)
        session.run(session.connection.execute(_BEGIN.format(limits, self._table)))
        self.has_profile_url = "profile_url" in self._columns
        self._texts = {key: f"u.{quoted(each.name)}::text" for key, each in self._columns.items()}
        # A row is found by its nickname, or without a nickname by its card number.
        nickname, card_number = self._texts["nickname"], self._texts["card_number"]
        self._key = f"coalesce({nickname}, chr(31) || {card_number}, '') COLLATE \"C\""

    def stored(self) -> Iterator[StoredRow]:
        """Yield all rows with values as text."""
        values = [self._texts.get(field, "NULL") for field in _FIELDS]
        query = f"SELECT {', '.join(values)}, {self._key} FROM {self._table} AS u"  # noqa: S608 - quoted
        yield from self._session.rows(query)

    def delete(self, keys: Iterable[object]) -> int:
        statement = f"DELETE FROM {self._table} AS u USING {_STAGED} WHERE {self._key} = s.key"  # noqa: S608 - quoted
        return self._apply(statement, ["key"], ((key,) for key in keys))

    def update(self, fields: Sequence[str], rows: Iterable[StoredRow]) -> int:
        pairs = (f"{quoted(self._columns[each].name)} = {self._value(each)}" for each in fields)
        statement = (
            f"UPDATE {self._table} AS u SET {', '.join(pairs)} FROM {_STAGED} "  # noqa: S608 - quoted
            f"WHERE {self._key} = s.key"
        )
        return self._apply(statement, [*fields, "key"], rows)

    def insert(self, fields: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
        names = ", ".join(quoted(self._columns[field].name) for field in fields)
        # Sorted values are inserted into an index faster. Nicknames are often sorted already, but
        # card numbers are not.
        statement = (
            f"INSERT INTO {self._table} ({names}) SELECT {', '.join(map(self._value, fields))} "  # noqa: S608 - quoted
            f'FROM {_STAGED} ORDER BY s.card_number COLLATE "C"'
        )
        return self._apply(statement, fields, rows)

    def _value(self, field: str) -> str:
        """Return the SQL of a temporary table's column, with a cast if the target is an enum."""
        column = self._columns[field]
        return f"s.{field}::{column.type_sql}" if column.is_enum else f"s.{field}"

    def commit(self) -> None:
        """Notify the services of the change and commit."""
        session = self._session
        if self._notify is not None:
            notify = "SELECT pg_notify($1::text, '*')"
            session.run(session.connection.execute(notify, self._notify.channel))
        with _mapped_errors(session.table):
            try:
                session.runner.run(session.connection.execute("COMMIT"))
                UserStore.ignore_signals()
            except BaseException as error:  # a signal, too
                if isinstance(error, asyncpg.PostgresError) and not is_disconnect(error):
                    raise  # the server refused the commit
                raise Unavailable(
                    "the server did not confirm the commit, and whether the users were changed "
                    "could not be determined; import them again"
                ) from None

    def _apply(
        self, statement: str, columns: Sequence[str], rows: Iterable[Sequence[object]]
    ) -> int:
        """Copy rows into the temporary table, and run a statement. Return how many rows changed."""
        run, connection = self._session.run, self._session.connection

        async def pausing() -> AsyncIterator[Sequence[object]]:
            for number, row in enumerate(rows):
                if number % _ROWS_BETWEEN_PAUSES == 0:
                    await asyncio.sleep(0)  # let a signal end the import
                yield row

        run(connection.execute("TRUNCATE pg_temp.idv_staged"))
        copy = connection.copy_records_to_table(
            "idv_staged", schema_name="pg_temp", records=pausing(), columns=columns
        )
        run(copy)
        # Without statistics, the planner would assume a small table, and use nested loops.
        run(connection.execute("ANALYZE pg_temp.idv_staged"))
        return int(run(connection.execute(statement)).split()[-1])


@dataclass(frozen=True, slots=True)
class _Session:
    """A transaction with a private event loop. If it only reads, ``table`` is an empty string."""

    runner: asyncio.Runner
    connection: Connection
    table: str
    columns: dict[str, Column]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with _mapped_errors(self.table):
            return self.runner.run(work)

    def rows(self, select: str) -> Iterator[asyncpg.Record]:
        async def open_cursor() -> Any:
            return await (await self.connection.prepare(select)).cursor()

        cursor = self.run(open_cursor())
        while rows := self.run(cursor.fetch(5000)):
            yield from rows


@contextmanager
def _session(options: PostgresOptions, *, readonly: bool = False) -> Iterator[_Session]:
    connector = Connector(options.primary_dsn, timeout=_CONNECT_TIMEOUT, roles=("primary",))
    table = "" if readonly else options.table
    with asyncio.Runner() as runner:
        with _mapped_errors(table):
            connection = runner.run(connector.connect())
        # Without a commit, the server rolls back when the connection is closed. After a signal
        # during COPY, a ROLLBACK cannot be sent, and its error would hide the signal.
        with connection:
            # In other isolation levels, statements after the lock would see older rows.
            begin = f"BEGIN ISOLATION LEVEL READ COMMITTED{' READ ONLY' if readonly else ''}"

            async def start() -> dict[str, Column]:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    await connection.execute(f"{begin}; {_SETTINGS}")
                return await read_columns(connection, options)

            with _mapped_errors(table):
                columns = runner.run(start())
            try:
                yield _Session(runner, connection, table, columns)
                with suppress(Exception):  # an error at the close does not change the result
                    runner.run(connection.close(timeout=1.0))
            finally:
                # After a signal, asyncio must not print the errors of the remaining task.
                runner.get_loop().set_exception_handler(lambda *_: None)


@contextmanager
def _mapped_errors(table: str) -> Iterator[None]:
    """Raise errors in the block as `LookupFailed`, without messages that may quote a value."""
    try:
        yield
    except _ERRORS as error:
        name = getattr(error, "constraint_name", None)
        if isinstance(error, asyncpg.NotNullViolationError):  # this constraint has no name
            name = f"NOT NULL of {error.column_name}"
        failure: Exception = to_lookup_failed(error)
        if name:
            failure = Broken(f"the table refuses the users: they violate the constraint {name}")
        elif table and isinstance(error, asyncpg.InsufficientPrivilegeError):
            failure = Broken(
                "the user of the dsn may not write; GRANT SELECT, INSERT, UPDATE, DELETE ON "
                f"{table}, and TEMPORARY on the database; for row-level security, add ALTER ROLE … "
                "BYPASSRLS; or import with the dsn of another user"
            )
        raise failure from None

"""All users of a PostgreSQL table at once, for ``tornado-idv users``: the only code that writes it.

Imported users are copied into a temporary table, where duplicates are found, and applied from
there in the same transaction. An empty table takes them batch by batch while they are
copied. Lookups see the old rows until its commit: nothing is truncated.
Rows that stay as they are, are not written, so that other columns keep their values. A row whose
card number changes is deleted and inserted: two users who exchange their card numbers would
otherwise violate the unique index, whatever comes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncpg

from idv_postgres.database import Connector
from idv_postgres.errors import is_disconnect, to_lookup_failed
from idv_postgres.import_sql import ImportSql, Selection
from idv_postgres.names import quoted, quoted_table
from idv_postgres.options import PostgresOptions
from idv_postgres.staging import Staging
from idv_postgres.table import read_columns, rejects_duplicates, to_user
from tornado_idv import Broken, NumberedUser, RejectRows, Unavailable, User, UserStore

_CONNECT_TIMEOUT = 10.0
_CLOSE_TIMEOUT = 1.0
_ROWS_AT_ONCE = 5000
# Between two batches the file is read, which may be a pipe. PostgreSQL has transaction_timeout from
# version 17 on.
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
_NO_COLUMN = "profile_url: the table has no column for it; see columns.profile_url of the backend"


class PostgresUserStore(UserStore):
    """The users in the table of one database.

    Connects as notifications do: to ``notify.dsn``, if it is given, and never to a standby.
    """

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        dsn = options.dsn
        if options.notify is not None and options.notify.dsn is not None:
            dsn = options.notify.dsn
        self._connector = Connector(dsn, timeout=_CONNECT_TIMEOUT, roles=("primary",))
        self._is_committing = False

    def count(self) -> int:
        """Return the number of rows."""
        table = quoted_table(self._options.table)

        async def count() -> int:
            async with self._transaction(readonly=True) as connection:
                await read_columns(connection, self._options)
                return int(await connection.fetchval(f"SELECT count(*) FROM {table}"))  # noqa: S608 - quoted

        with asyncio.Runner() as runner, _mapped_errors():
            return runner.run(count())

    def records(self) -> Iterator[User]:
        """Yield all users, from one transaction."""
        chunks = self._chunks()
        with asyncio.Runner() as runner, _mapped_errors():
            try:
                while (rows := runner.run(_next(chunks))) is not None:
                    for row in rows:
                        # Its caller sees users and None alike.
                        user = to_user([row])
                        if user is not None:
                            yield user
            finally:
                runner.run(_close(chunks))

    def replace(self, users: Iterable[NumberedUser], reject: RejectRows) -> int:
        """Replace all users, in one transaction."""
        return self._run(self._write(users, reject, replaces=True))

    def merge(self, users: Iterable[NumberedUser], reject: RejectRows) -> int:
        """Add or update users, in one transaction."""
        return self._run(self._write(users, reject, replaces=False))

    def _run(self, write: Coroutine[Any, Any, int]) -> int:
        self._is_committing = False
        with asyncio.Runner() as runner, _mapped_errors(self._options.table):
            try:
                return runner.run(write)
            except BaseException as error:  # a signal, too
                is_refused = isinstance(error, asyncpg.PostgresError) and not is_disconnect(error)
                if self._is_committing and not is_refused:
                    raise Unavailable(_UNCERTAIN) from None
                raise

    async def _write(
        self, users: Iterable[NumberedUser], reject: RejectRows, *, replaces: bool
    ) -> int:
        async with self._transaction() as connection:
            sql = ImportSql(self._options, await read_columns(connection, self._options))
            rejected: list[tuple[int, str]] = []
            await connection.execute(sql.create)
            is_empty = await self._lock_empty(connection, sql)
            inserts = is_empty and await rejects_duplicates(connection, self._options)
            staging = Staging(connection, sql, inserts=inserts)
            await staging.fill(_rows(users, rejected, has_url=sql.has_url))
            if not staging.is_inserted:
                await connection.execute(sql.analyze)
                rejected += await _delete(connection, sql.duplicates)
            if not is_empty:
                await connection.execute(sql.lock)
                if not replaces:
                    rejected += await _delete(connection, [sql.card_conflicts])
            reject(rejected)
            if is_empty:
                await staging.insert()
            else:
                for statement in sql.changes(replaces=replaces):
                    await connection.execute(statement)
            if self._options.notify is not None:
                channel = self._options.notify.channel
                await connection.execute("SELECT pg_notify($1::text, '*')", channel)
            return int(await connection.fetchval("SELECT count(*) FROM idv_staged"))

    async def _lock_empty(self, connection: asyncpg.Connection, sql: ImportSql) -> bool:
        """Lock the table if it is empty; return whether it was, and stays so."""
        if not await connection.fetchval(sql.is_empty):
            return False
        await connection.execute(sql.lock)
        return bool(await connection.fetchval(sql.is_empty))

    async def _chunks(self) -> AsyncIterator[list[asyncpg.Record]]:
        options, names = self._options, self._options.columns
        async with self._transaction(readonly=True) as connection:
            columns = await read_columns(connection, options)
            url = names.profile_url or "profile_url"
            selected = [f"{quoted(each)}::text" for each in (names.plan, names.card_number)]
            selected.append(f"{quoted(names.nickname)}::text")
            selected.append(f"{quoted(url)}::text" if url in columns else "NULL")
            key = f'{quoted(names.nickname)}::text COLLATE "C"'
            order = f"lower({key})" if options.folds_nicknames else key
            cursor = await connection.cursor(
                f"SELECT {', '.join(selected)} FROM {quoted_table(options.table)} "  # noqa: S608 - quoted
                f"ORDER BY {order}"
            )
            while rows := await cursor.fetch(_ROWS_AT_ONCE):
                yield rows

    @asynccontextmanager
    async def _transaction(self, *, readonly: bool = False) -> AsyncIterator[asyncpg.Connection]:
        connection = await self._connector.connect(statement_cache_size=0)
        # Without a commit the server rolls back as the connection is closed: after a signal during
        # COPY, the connection cannot send a ROLLBACK, and the error would hide the signal.
        try:
            # With any other isolation, statements after a lock see the rows of before it.
            transaction = connection.transaction(isolation="read_committed", readonly=readonly)
            await transaction.start()
            await connection.execute(_SETTINGS)
            yield connection
            self._is_committing = not readonly
            await transaction.commit()
            if not readonly:
                self.ignore_signals()
            with suppress(Exception):  # nothing that fails now changes the result
                await connection.close(timeout=_CLOSE_TIMEOUT)
        finally:
            connection.terminate()


def _rows(
    users: Iterable[NumberedUser], rejected: list[tuple[int, str]], *, has_url: bool
) -> Iterator[tuple[object, ...]]:
    for line, user in users:
        if has_url:
            yield line, user.nickname, user.card_number, user.plan, user.profile_url
        elif user.profile_url is None:
            yield line, user.nickname, user.card_number, user.plan
        else:
            rejected.append((line, _NO_COLUMN))


async def _delete(
    connection: asyncpg.Connection, selections: Iterable[Selection]
) -> list[tuple[int, str]]:
    return [
        (row["line"], reason)
        for statement, reason in selections
        for row in await connection.fetch(statement)
    ]


@contextmanager
def _mapped_errors(table: str = "") -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        raise _to_failed(error, table) from None


def _to_failed(error: Exception, table: str) -> Exception:
    """Return the failure without the server's message, which may quote a value."""
    constraint = getattr(error, "constraint_name", None)
    if constraint:
        return Broken(f"the table refuses the users: they violate the constraint {constraint}")
    if table and isinstance(error, asyncpg.InsufficientPrivilegeError):
        return Broken(
            f"the user of the dsn may not write; GRANT SELECT, INSERT, UPDATE, DELETE ON {table} "
            "and, on the database, TEMPORARY to it (and, for row-level security, ALTER ROLE … "
            "BYPASSRLS), or use another configuration for imports"
        )
    return to_lookup_failed(error)


async def _next(chunks: AsyncIterator[list[asyncpg.Record]]) -> list[asyncpg.Record] | None:
    return await anext(chunks, None)


async def _close(chunks: Any) -> None:
    await chunks.aclose()

"""All users of a PostgreSQL table at once, for ``tornado-idv users``: the only code that writes it.

Imported users are copied into a temporary table, where duplicates are found, and applied from
there in the same transaction. Lookups see the old rows until its commit: nothing is truncated.
"""

from __future__ import annotations

import asyncio
import errno
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncpg

from idv_postgres.database import Connector
from idv_postgres.errors import is_disconnect, to_lookup_failed
from idv_postgres.options import PostgresOptions
from idv_postgres.schema import quoted
from idv_postgres.staging import ImportSql, Selection
from idv_postgres.table import read_columns, select_users, to_user
from tornado_idv import (
    Broken,
    DaemonThread,
    ImportResult,
    LookupFailed,
    NumberedUser,
    ReviewImport,
    Unavailable,
    User,
    UserStore,
)

_CONNECT_TIMEOUT = 10.0
_CLOSE_TIMEOUT = 1.0
_CHECK_INTERVAL = 10.0
"""Seconds between two checks whether the server has the session."""
_ROWS_AT_ONCE = 5000
_ROWS_BETWEEN_PAUSES = 200
# Between two batches the file is read, which may be a pipe. PostgreSQL has transaction_timeout from
# version 17 on.
_SETTINGS = """
SET LOCAL lock_timeout = '10s';
SET LOCAL row_security = off;
SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN (
    'statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout'
)
"""
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
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
        self._connector = Connector(
            options.primary_dsn, timeout=_CONNECT_TIMEOUT, roles=("primary",)
        )
        self._is_committing = False

    def count(self) -> int:
        """Return the number of rows."""

        async def count() -> int:
            async with self._transaction(readonly=True) as connection:
                columns = await read_columns(connection, self._options)
                return int(await connection.fetchval(ImportSql(self._options, columns).count))

        with asyncio.Runner() as runner, _mapped_errors():
            return runner.run(count())

    def records(self) -> Iterator[User]:
        """Yield all users, from one transaction."""
        chunks = self._chunks()
        with asyncio.Runner() as runner, _mapped_errors(), suppress(StopAsyncIteration):
            try:
                while True:
                    yield from map(to_user, runner.run(chunks.__anext__()))
            finally:
                runner.run(chunks.aclose())

    def replace(self, users: Iterable[NumberedUser], review: ReviewImport) -> ImportResult:
        """Replace all users, in one transaction."""
        return self._run(self._write(users, review, replaces=True))

    def merge(self, users: Iterable[NumberedUser], review: ReviewImport) -> ImportResult:
        """Add or update users, in one transaction."""
        return self._run(self._write(users, review, replaces=False))

    def _run(self, write: Coroutine[Any, Any, ImportResult]) -> ImportResult:
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
        self, users: Iterable[NumberedUser], review: ReviewImport, *, replaces: bool
    ) -> ImportResult:
        async with self._transaction() as connection:
            sql = ImportSql(self._options, await read_columns(connection, self._options))
            rejected: list[tuple[int, str]] = []
            await connection.execute(sql.create)
            rows = _rows(users, rejected, has_url=sql.has_url)
            await connection.copy_records_to_table("idv_staged", records=rows)
            await connection.execute(sql.analyze)
            for each in sql.duplicates:
                rejected += await _delete(connection, each)
            await connection.execute(sql.lock)
            if not replaces:
                blocked = _blocked(await connection.fetch(sql.card_moves))
                rejected += await _delete(connection, sql.taken_cards, blocked)
            stored = await connection.fetchval(sql.count)
            removed = await _execute(connection, sql.delete_others) if replaces else 0
            review(rejected, removed, stored)
            imported = await connection.fetchval("SELECT count(*) FROM idv_staged")
            moved, updated, added = [await _execute(connection, each) for each in sql.changes]
            if self._options.notify is not None:
                channel = self._options.notify.channel
                await connection.execute("SELECT pg_notify($1::text, '*')", channel)
            return ImportResult(imported, added - moved, updated + moved, removed)

    async def _chunks(self) -> AsyncGenerator[list[asyncpg.Record], None]:
        options = self._options
        async with self._transaction(readonly=True) as connection:
            columns = await read_columns(connection, options)
            key = f'u.{quoted(options.columns.nickname)}::text COLLATE "C"'
            order = f"lower({key})" if options.folds_nicknames else key
            cursor = await connection.cursor(f"{select_users(options, columns)} ORDER BY {order}")
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
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                await transaction.start()
                await connection.execute(_SETTINGS)
                process = await connection.fetchval("SELECT pg_backend_pid()")
            async with self._watched(connection, process):
                yield connection
                self._is_committing = not readonly
                await transaction.commit()
            if not readonly:
                self.ignore_signals()
            with suppress(Exception):  # nothing that fails now changes the result
                await connection.close(timeout=_CLOSE_TIMEOUT)
        finally:
            connection.terminate()

    @asynccontextmanager
    async def _watched(self, connection: asyncpg.Connection, process: int) -> AsyncIterator[None]:
        """Raise `Unavailable` if the server does not respond any more, or has lost the session.

        The kernel of a machine whose server is frozen confirms what it receives, so that neither
        TCP nor asyncpg reports an error, and a statement that takes long looks the same. So a
        second connection is made every few seconds: in a thread, as this one reads the users too.
        """
        task, thread = asyncio.current_task(), DaemonThread("idv_postgres session check")
        is_lost = False

        async def watch() -> None:
            nonlocal is_lost
            while not is_lost:
                await asyncio.sleep(_CHECK_INTERVAL)
                with suppress(Exception):  # a check that fails here says nothing of the server
                    is_lost = not await thread(_has_session, self._connector, process)
            connection.terminate()
            if task is not None:
                task.cancel()  # COPY does not end by itself

        watching = asyncio.create_task(watch())
        try:
            yield
        except BaseException:
            if is_lost:
                raise Unavailable("the server does not respond any more") from None
            raise
        finally:
            watching.cancel()


def _has_session(connector: Connector, process: int) -> bool:
    with asyncio.Runner() as runner:  # whose loop may be one file too many
        return runner.run(_find_session(connector, process))


async def _find_session(connector: Connector, process: int) -> bool:
    query = f"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {process})"  # noqa: S608 - a number
    try:
        connection = await connector.connect(statement_cache_size=0)
        try:
            return bool(await connection.fetchval(query, timeout=_CONNECT_TIMEOUT))
        finally:
            connection.terminate()
    except (asyncpg.PostgresError, LookupFailed) as error:  # such as too many connections
        return not isinstance(error, asyncpg.PostgresConnectionError)
    except _ERRORS as error:
        return getattr(error, "errno", None) in _OUT_OF_FILES


async def _rows(
    users: Iterable[NumberedUser], rejected: list[tuple[int, str]], *, has_url: bool
) -> AsyncIterator[tuple[object, ...]]:
    for number, (line, user) in enumerate(users):
        if number % _ROWS_BETWEEN_PAUSES == 0:
            await asyncio.sleep(0)  # let a signal end the import
        if has_url or user.profile_url is None:
            yield line, user.nickname, user.card_number, user.plan, user.profile_url
        else:
            rejected.append((line, _NO_COLUMN))


async def _delete(
    connection: asyncpg.Connection, selection: Selection, *values: object
) -> list[tuple[int, str]]:
    statement, reason = selection
    return [(row["line"], reason) for row in await connection.fetch(statement, *values)]


async def _execute(connection: asyncpg.Connection, statement: str) -> int:
    """Return the number of rows that a statement has changed, the end of its command tag."""
    return int((await connection.execute(statement)).split()[-1])


def _blocked(moves: Iterable[Sequence[str | None]]) -> list[str | None]:
    """Return the users who cannot have their card numbers, as a stored one keeps it.

    ``moves`` are pairs of nicknames, see `ImportSql.card_moves`. A user who is blocked keeps a
    card number as well, so that another one who takes that is blocked, too.
    """
    takers: defaultdict[str | None, list[str | None]] = defaultdict(list)
    for taker, holder in moves:
        takers[holder].append(taker)
    blocked = takers.pop(None, [])
    for each in blocked:  # which grows
        blocked += takers.pop(each, [])
    return blocked


@contextmanager
def _mapped_errors(table: str = "") -> Iterator[None]:
    """Raise failures without the server's message, which may quote a value."""
    try:
        yield
    except _ERRORS as error:
        constraint = getattr(error, "constraint_name", None)
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

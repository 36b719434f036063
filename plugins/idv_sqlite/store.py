"""The user store of a SQLite file, for ``tornado-idv users``. Only this module writes the file.

To replace users, an import changes a copy of the file, and renames the copy over the file. So
readers are never locked out. A file in WAL mode is changed in one transaction instead, because
SQLite would apply its ``-wal`` file to the copy. In WAL mode, writers do not lock readers out.
"""

import asyncio
import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain, count, islice
from pathlib import Path

from idv_sqlite.errors import REPLACED, mapped_errors, to_write_failed
from idv_sqlite.files import sync, uri_of
from idv_sqlite.openfile import OpenFile
from idv_sqlite.options import SqliteOptions
from idv_sqlite.table import FIELDS, Table, quoted, to_user
from tornado_idv import StartError, StoredRow, Unavailable, User, UserStore, UserTransaction

_BUSY_TIMEOUT = 10.0
"""Maximum seconds to wait for another writer, or for readers at the commit."""
_CACHE = -40 * 1024
"""The size of SQLite's page cache. A negative number means KiB."""
_NO_JOURNAL = "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF"


def _new_file(target: Path, stack: ExitStack, *, is_new: bool) -> Path:
    """Create a copy of the database ``target`` or, if ``is_new``, an empty file. Return its path.

    The end of ``stack`` deletes the new file, unless it was renamed. Until then, other writers of
    ``target`` are locked out, but readers are not. Raises `StartError`.
    """
    path = target.with_name(f".{target.name}.import")
    try:  # reuse the file of an interrupted import
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise StartError(f"{path}: cannot be written: {error.strerror}") from None
    stack.callback(os.close, descriptor)
    status = os.fstat(descriptor)
    is_locked = False
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another import may have renamed the file before the lock. A hard link is another file.
        is_locked = os.path.samestat(status, path.stat()) and status.st_nlink == 1
    if not is_locked:
        raise StartError(f"{target}: another import is running, or {path.name} is a hard link")
    os.truncate(descriptor, 0)

    def delete() -> None:
        with suppress(FileNotFoundError):
            if os.path.samestat(status, path.stat()):  # not the file of the next import
                path.unlink()

    stack.callback(delete)
    try:  # an empty file has rights, too
        old = target.stat()
        os.fchown(descriptor, old.st_uid, old.st_gid)
        os.fchmod(descriptor, old.st_mode & 0o7777)
    except FileNotFoundError:
        pass
    except OSError:
        raise StartError(
            f"{target}: the new file cannot get the same owner; run the import as the file's owner"
        ) from None
    if not is_new:
        _copy(target, path, stack)
    return path


def _rename(path: Path, target: Path) -> None:
    """Rename the new file ``path`` over ``target``.

    Raises `StartError` if the rename fails, and `Unavailable` if a crash may still undo it.
    """
    try:
        sync(path)
        path.replace(target)
    except OSError as error:
        reason = error.strerror
        if error.errno in {errno.EBUSY, errno.EXDEV}:
            reason = (
                "the file itself is a mount point, as in a container; mount its folder, or add "
                "--merge, which changes the file in place, but removes no users"
            )
        raise StartError(f"{target}: cannot be replaced: {reason}") from None
    try:
        sync(target.parent)
    except OSError as error:
        raise Unavailable(
            f"{error.strerror}; the users were changed, but whether the change survives a crash of "
            "the machine could not be determined; import them again"
        ) from None


def _copy(target: Path, path: Path, stack: ExitStack) -> None:
    """Copy the database. Lock other writers out until the end of ``stack``."""
    lock, source = (stack.enter_context(_connected(target)) for _ in range(2))
    # SQLite does not copy from a connection with a write transaction, so there are two.
    lock.execute("BEGIN IMMEDIATE")
    with closing(sqlite3.connect(path)) as copy:
        copy.executescript(_NO_JOURNAL)
        source.backup(copy)


def _file_id(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file at the path, or ``None`` for no or an empty file."""
    try:
        status = path.stat()  # `exists` hides other errors, from Python 3.14 on
    except FileNotFoundError:
        return None
    return (status.st_dev, status.st_ino) if status.st_size else None


class SqliteUserStore(UserStore):
    """The users in the table of one file."""

    def __init__(self, options: SqliteOptions) -> None:
        self.options = options
        self.max_removed = options.max_removed
        self._table = quoted(options.table)

    def count(self) -> int:
        with self._reading() as (connection, _):
            ((number,),) = connection.execute(f"SELECT count(*) FROM {self._table}")  # noqa: S608 - quoted
            return int(number)

    def records(self) -> Iterator[User]:
        """Yield all users in one read transaction."""
        with self._reading() as (connection, table):
            selected = ", ".join(table.columns.get(field, "NULL") for field in FIELDS)
            collation = "NOCASE" if self.options.folds_nicknames else "BINARY"
            rows = connection.execute(
                f"SELECT {selected} FROM {self._table} "  # noqa: S608 - quoted
                f"ORDER BY {table.columns['nickname']} COLLATE {collation}"
            )
            yield from map(to_user, rows)

    @contextmanager
    def transaction(self, *, in_place: bool) -> "Iterator[SqliteTransaction]":
        """Begin a transaction in the file, or in a copy that the commit renames over the file."""
        # The target of a symbolic link is replaced, not the link.
        path = Path(os.path.realpath(self.options.path))
        is_new = (file_id := _file_id(path)) is None
        with ExitStack() as stack:
            with mapped_errors(to_write_failed):
                table = None if is_new else check(self.options)
                if table and table.is_view:
                    name = f"{self._table} in {self.options.path}"
                    raise StartError(f"{name} is a view, and cannot be imported into")
                is_copy = is_new or not (in_place or _journal_mode(path) == "wal")
                if is_new and any(map(os.path.lexists, (f"{path}-wal", f"{path}-journal"))):
                    raise StartError(f"{path}: remove the -wal or -journal of the old database")
                target = _new_file(path, stack, is_new=is_new) if is_copy else path
                connection = stack.enter_context(_connected(target))
                changes = SqliteTransaction(self, connection, table, path, target, file_id=file_id)
            yield changes

    @contextmanager
    def _reading(self) -> Iterator[tuple[sqlite3.Connection, Table]]:
        with mapped_errors(to_write_failed):
            table = check(self.options)
            with _connected(self.options.path, read_only=True) as connection:
                connection.execute("PRAGMA trusted_schema = OFF")
                yield connection, table


class SqliteTransaction(UserTransaction):
    """A transaction in ``target``. The commit of a copy renames it over ``path``."""

    def __init__(
        self,
        store: SqliteUserStore,
        connection: sqlite3.Connection,
        table: Table | None,
        path: Path,
        target: Path,
        *,
        file_id: tuple[int, int] | None,
    ) -> None:
        self._store, self._connection = store, connection
        self._path, self._target, self._file_id = path, target, file_id
        options = store.options
        self._table, self._is_new = quoted(options.table), table is None
        new = {field: quoted(name) for field, name in options.column_names.items()}
        self._columns = table.columns if table else new
        self.has_profile_url = "profile_url" in self._columns
        connection.execute(f"PRAGMA cache_size = {_CACHE}")
        connection.executescript("PRAGMA trusted_schema = OFF; PRAGMA foreign_keys = ON")
        if target != path:  # the copy needs no journal: a failure deletes it
            connection.executescript(_NO_JOURNAL)
        connection.execute("BEGIN IMMEDIATE")
        if self._is_new:
            columns = ", ".join(
                f"{name} TEXT{'' if field == 'profile_url' else ' NOT NULL'}"
                for field, name in self._columns.items()
            )
            connection.execute(f"CREATE TABLE {self._table} ({columns})")
        self._key = self._row_key(options.table)
        self._numbers: Iterator[int] | None = None

    def _row_key(self, table: str) -> str:
        """Return the column that identifies a row: a rowid or, without a rowid, the nicknames."""
        rows = self._connection.execute("SELECT name FROM pragma_table_xinfo(?)", [table])
        columns = {name.lower() for (name,) in rows}
        for name in {"rowid", "_rowid_", "oid"} - columns:
            with suppress(sqlite3.OperationalError):
                self._connection.execute(f"SELECT {name} FROM {self._table} LIMIT 0")  # noqa: S608 - quoted
                return name
        return self._columns["nickname"]

    def stored(self) -> Iterator[StoredRow]:
        """Yield all rows as they are in this transaction."""
        plan, card_number, nickname, url = (self._columns.get(each, "NULL") for each in FIELDS)
        # A nickname in bytes is never served. A null plan makes its row differ from the import.
        plan = f"iif(typeof({nickname}) = 'blob', NULL, {plan})"
        names = f"CAST({nickname} AS TEXT), {card_number}, {plan}, {url}, {self._key}"
        with mapped_errors(to_write_failed):
            # `chain` has no `close`: `yield from` would close the cursor after its connection.
            yield from chain(self._connection.execute(f"SELECT {names} FROM {self._table}"))  # noqa: S608 - quoted

    def delete(self, keys: Iterable[object]) -> int:
        ((last,),) = self._connection.execute(f"SELECT max({self._key}) FROM {self._table}")  # noqa: S608 - quoted
        deleted = self._run(f"DELETE FROM {self._table} {self._where(1)}", ((key,) for key in keys))  # noqa: S608 - quoted
        query = "SELECT sql LIKE '%AUTOINCREMENT%' FROM sqlite_master WHERE lower(name) = lower(?)"
        ((counts,),) = self._connection.execute(query, [self._store.options.table])
        if deleted and isinstance(last, int) and last < 2**63 - 1 and not counts:
            # SQLite would reuse the number of a deleted row. References would lead to another user.
            self._numbers = count(last + 1)
        return deleted

    def update(self, fields: Sequence[str], rows: Iterable[StoredRow]) -> int:
        pairs = ", ".join(f"{self._columns[field]} = ?" for field in fields)
        return self._run(f"UPDATE {self._table} SET {pairs} {self._where(len(fields) + 1)}", rows)  # noqa: S608 - quoted

    def insert(self, fields: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
        """Add rows, many per statement. This takes half the time of single rows."""
        names = [self._columns[field] for field in fields]
        if self._numbers is not None:
            names.append(self._key)
            rows = ((*row, number) for row, number in zip(rows, self._numbers, strict=False))
        values, rows, added = f"({', '.join('?' * len(names))})", iter(rows), 0
        while chunk := list(islice(rows, 1000)):
            inserted = ", ".join([values] * len(chunk))
            statement = f"INSERT INTO {self._table} ({', '.join(names)}) VALUES {inserted}"  # noqa: S608 - quoted
            added += self._run(statement, [tuple(chain.from_iterable(chunk))])
        return added

    def commit(self) -> None:
        """Commit. If a copy was changed, validate it and rename it over the file."""
        with mapped_errors(to_write_failed):
            if self._is_new:
                self._create_indexes()
            if self._target != self._path:
                self._connection.execute("COMMIT")
                self._connection.close()
                # A file that the service rejects must not replace the file in use.
                check(self._store.options.model_copy(update={"path": self._target}))
            if _file_id(self._store.options.path) != self._file_id:  # a link may lead elsewhere now
                raise StartError(f"{self._path}: {REPLACED}")
            self._store.ignore_signals()
            if self._target != self._path:
                _rename(self._target, self._path)
            else:
                self._connection.execute("COMMIT")

    def _create_indexes(self) -> None:
        """Create the unique indexes of a new table. This is faster after its rows are inserted."""
        options = self._store.options
        for field, folds in (("nickname", options.folds_nicknames), ("card_number", False)):
            index = quoted(f"{options.table}_{field}")
            key = self._columns[field] + " COLLATE NOCASE" * folds
            self._connection.execute(f"CREATE UNIQUE INDEX {index} ON {self._table} ({key})")

    def _where(self, place: int) -> str:
        """Return the condition for the row whose key is a parameter. It distinguishes case."""
        return f"WHERE {self._key} = ?{place} AND {self._key} = ?{place} COLLATE BINARY"

    def _run(self, statement: str, rows: Iterable[Sequence[object]]) -> int:
        with mapped_errors(to_write_failed):
            return self._connection.executemany(statement, rows).rowcount


def check(options: SqliteOptions) -> Table:
    """Validate the file as the service does at its start. Raises `Unavailable` or `Broken`."""

    async def open_and_close() -> Table:
        file = await OpenFile.open(options)
        await file.close()
        return file.users

    return asyncio.run(open_and_close())


def _journal_mode(path: Path) -> str:
    with _connected(path) as connection:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])


def _connected(path: Path, *, read_only: bool = False) -> closing[sqlite3.Connection]:
    uri = uri_of(path, read_only=read_only)
    return closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT))

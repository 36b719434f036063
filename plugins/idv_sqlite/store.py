"""All users of a SQLite file at once, for ``tornado-idv users``: the only code that writes it.

Imported users are staged in a temporary database, where duplicates are found; the file is locked
only after that. To replace all users, a copy of the file is changed and renamed over it, so that
readers are never locked out. A file in WAL mode is changed in one transaction instead: a new file
would be read with the ``-wal`` file of the old one, and in this mode writers do not lock readers
out.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from idv_sqlite.errors import to_write_failed
from idv_sqlite.openfile import OpenFile
from idv_sqlite.options import SqliteOptions
from idv_sqlite.reader import read_only_uri
from idv_sqlite.staging import Staging
from idv_sqlite.table import Table, quoted, to_user
from tornado_idv import (
    ImportResult,
    NumberedUser,
    ReviewImport,
    StartError,
    Unavailable,
    User,
    UserStore,
)

_BUSY_TIMEOUT = 10.0
"""Seconds to wait for another writer."""
_ROWS_AT_ONCE = 1000
_NOT_DURABLE = (
    "the users were changed, and whether that outlasts a crash of the machine could not be "
    "determined; import them again"
)


@contextmanager
def _replacement(target: Path, *, is_new: bool) -> Iterator[Path]:
    """Yield a copy of the database at ``target``, or an empty file, which gets its name at the end.

    Other writers of the old file are locked out until then; readers are not. After an error, or if
    the process ends, the old file stays as it is. Raises `StartError`, and `Unavailable` for an
    error after the new file has the name.
    """
    path = target.with_name(f".{target.name}.import")
    with ExitStack() as stack:
        try:
            descriptor = _open_locked(path, target)
        except OSError as error:
            raise StartError(f"{path}: cannot be written: {error.strerror}") from None
        stack.callback(os.close, descriptor)
        try:
            if not is_new:
                _copy(target, path, descriptor, stack)
            yield path
            try:
                os.fsync(descriptor)
                path.replace(target)
            except OSError as error:
                raise StartError(f"{target}: cannot be replaced: {error.strerror}") from None
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        try:
            folder = os.open(target.parent, os.O_RDONLY)
            stack.callback(os.close, folder)
            os.fsync(folder)
        except OSError as error:
            raise Unavailable(f"{error.strerror}; {_NOT_DURABLE}") from None


def _open_locked(path: Path, target: Path) -> int:
    """Return the locked file, empty: one that an earlier process left is used again."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another import may have renamed it.
        is_locked = os.path.samestat(os.fstat(descriptor), path.stat())
    except (BlockingIOError, FileNotFoundError):
        is_locked = False
    if not is_locked:
        os.close(descriptor)
        raise StartError(f"{target}: another import is running")
    os.truncate(descriptor, 0)
    return descriptor


def _copy(target: Path, path: Path, descriptor: int, stack: ExitStack) -> None:
    """Copy the database, with its owner and mode; its writers are locked out up to the end."""
    lock, source = (
        stack.enter_context(
            closing(sqlite3.connect(target, isolation_level=None, timeout=_BUSY_TIMEOUT))
        )
        for _ in range(2)
    )
    # By a connection of its own: SQLite does not copy from one that has begun to write.
    lock.execute("BEGIN IMMEDIATE")
    status = target.stat()
    try:
        os.fchown(descriptor, status.st_uid, status.st_gid)
    except OSError:
        raise StartError(
            f"{target}: the new file cannot be given to the owner of this one; run the "
            "import as that user"
        ) from None
    os.fchmod(descriptor, status.st_mode & 0o7777)
    with closing(sqlite3.connect(path)) as copy:
        copy.execute("PRAGMA journal_mode = OFF")
        copy.execute("PRAGMA synchronous = OFF")
        source.backup(copy)


def _is_missing(path: Path) -> bool:
    """Return whether there is no database, but at most an empty file."""
    return not path.exists() or path.stat().st_size == 0


class SqliteUserStore(UserStore):
    """The users in the table of one file."""

    def __init__(self, options: SqliteOptions) -> None:
        self._options = options
        self._columns = options.columns
        self._table = quoted(options.table)

    def count(self) -> int:
        """Return the number of rows."""
        with self._reading() as (connection, _):
            ((count,),) = connection.execute(f"SELECT count(*) FROM {self._table}")  # noqa: S608 - quoted
            return int(count)

    def records(self) -> Iterator[User]:
        """Yield all users, from one read transaction."""
        with self._reading() as (connection, table):
            columns, url = self._columns, table.profile_url
            names = (columns.plan, columns.card_number, columns.nickname)
            selected = ", ".join([*map(quoted, names), quoted(url) if url else "NULL"])
            collation = "NOCASE" if self._options.folds_nicknames else "BINARY"
            rows = connection.execute(
                f"SELECT {selected} FROM {self._table} "  # noqa: S608 - quoted
                f"ORDER BY {quoted(columns.nickname)} COLLATE {collation}"
            )
            rows.arraysize = _ROWS_AT_ONCE
            while chunk := rows.fetchmany():
                for row in chunk:
                    yield to_user(row)

    def replace(self, users: Iterable[NumberedUser], review: ReviewImport) -> ImportResult:
        """Replace all users, in a new file unless the file is in WAL mode."""
        return self._write(users, review, replaces=True)

    def merge(self, users: Iterable[NumberedUser], review: ReviewImport) -> ImportResult:
        """Add or update users, in one transaction."""
        return self._write(users, review, replaces=False)

    def _write(
        self, users: Iterable[NumberedUser], review: ReviewImport, *, replaces: bool
    ) -> ImportResult:
        # The file itself is replaced, not a link that leads to it.
        path = self._options.path.resolve()
        is_new = _is_missing(path)
        with _mapped_errors():
            url: str | None = self._columns.profile_url or "profile_url"
            if not is_new:
                table = self._check(self._options)
                if table.is_view:
                    raise StartError(
                        f"{self._table} in {self._options.path} is a view, and cannot be imported "
                        "into"
                    )
                url = table.profile_url
            with closing(Staging(self._options, url)) as staging:
                rejected = staging.fill(users) + staging.delete_duplicates()
                if not is_new and (not replaces or _journal_mode(path) == "wal"):
                    staging.attach(path)
                    result = _apply(staging, rejected, review, replaces=replaces)
                    self.ignore_signals()
                    staging.commit()
                    return result
                with _replacement(path, is_new=is_new) as new:
                    if is_new and not _is_missing(path):
                        raise StartError(
                            f"{path}: another writer created it during the import, which changed "
                            "nothing; import again"
                        )
                    staging.attach(new, is_private=True)
                    if is_new:
                        staging.create_table()
                    result = _apply(staging, rejected, review, replaces=True)
                    if is_new:
                        staging.create_indexes()
                    staging.commit()
                    staging.detach()
                    # What the service would not open must not come in place of what it serves.
                    self._check(self._options.model_copy(update={"path": new}))
                    self.ignore_signals()
                return result

    def _check(self, options: SqliteOptions) -> Table:
        """Open and close the file as the service does; raises `Unavailable` or `Broken`."""

        async def open_and_close() -> Table:
            file = await OpenFile.open(options)
            await file.close()
            return file.users

        return asyncio.run(open_and_close())

    @contextmanager
    def _reading(self) -> Iterator[tuple[sqlite3.Connection, Table]]:
        with _mapped_errors():
            table = self._check(self._options)
            uri = read_only_uri(self._options.path)
            with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT)) as connection:
                connection.execute("PRAGMA trusted_schema = OFF")
                yield connection, table


def _apply(
    staging: Staging, rejected: list[tuple[int, str]], review: ReviewImport, *, replaces: bool
) -> ImportResult:
    if not replaces:
        rejected += staging.card_conflicts()
    stored = staging.begin()
    removed = staging.delete_others() if replaces else 0
    review(rejected, removed, stored)
    added, updated = staging.apply()
    return ImportResult(staging.count, added, updated, removed)


@contextmanager
def _mapped_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise to_write_failed(error) from None


def _journal_mode(path: Path) -> str:
    with closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT)) as connection:
        ((mode,),) = connection.execute("PRAGMA journal_mode")
        return str(mode)

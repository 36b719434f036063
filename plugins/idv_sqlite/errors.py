"""The conversion of SQLite's errors to those of this service. The reasons contain no data.

Messages of SQLite are dropped, because some quote a value of the table.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tornado_idv import Broken, LookupFailed, Unavailable

REPLACED = "another program replaced the file during the import; nothing was changed; import again"
_BROKEN = {
    sqlite3.SQLITE_CORRUPT: "the database is damaged",
    sqlite3.SQLITE_NOTADB: "the file is not a database",
}
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "the database is locked",
    sqlite3.SQLITE_CANTOPEN: (
        "the file or its -wal, -shm or -journal file cannot be opened; give this user "
        "permission to read them, and to write to the directory if the database is in WAL mode"
    ),
    sqlite3.SQLITE_ERROR: "the table, or a column of it, is gone",
    sqlite3.SQLITE_INTERRUPT: "the query was stopped",
    sqlite3.SQLITE_IOERR: "the file cannot be read",
    sqlite3.SQLITE_LOCKED: "the database is locked",
}
_UNAVAILABLE_EXTENDED = {
    sqlite3.SQLITE_READONLY_DBMOVED: REPLACED,
    **dict.fromkeys(
        (
            sqlite3.SQLITE_READONLY_CANTINIT,
            sqlite3.SQLITE_READONLY_CANTLOCK,
            sqlite3.SQLITE_READONLY_DIRECTORY,
            sqlite3.SQLITE_READONLY_RECOVERY,
        ),
        "the database is in WAL mode and this user cannot create or write its -wal and -shm files; "
        "let this user write to the directory and these files, or turn WAL mode off with: "
        "PRAGMA journal_mode=DELETE",
    ),
    sqlite3.SQLITE_READONLY_ROLLBACK: (
        "a writer stopped in the middle of a transaction and left a -journal file; roll it back "
        "by opening the file once for writing: sqlite3 FILE 'PRAGMA schema_version'"
    ),
}


@contextmanager
def mapped_errors(convert: Callable[[sqlite3.Error], Exception]) -> Iterator[None]:
    """Raise the result of ``convert`` in place of an error of SQLite."""
    try:
        yield
    except sqlite3.Error as error:
        raise convert(error) from None


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether the database is locked. After the end of a write, a query may succeed."""
    return primary_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def to_lookup_failed(error: sqlite3.Error) -> LookupFailed:
    """Return the `Unavailable` or `Broken` for an error of SQLite."""
    code = primary_code(error)
    if code is None:
        if type(error) is sqlite3.OperationalError:
            return Broken("a value in the table is not valid UTF-8")
        return Unavailable("the connection is closed")
    if code in _BROKEN:
        return Broken(_BROKEN[code])
    extended, name = error.sqlite_errorcode, error.sqlite_errorname
    reason = _UNAVAILABLE_EXTENDED.get(extended) or _UNAVAILABLE.get(code)
    if reason is None:
        reason = f"SQLite fails with {name}"
    elif code == sqlite3.SQLITE_ERROR and str(error).startswith("unsafe use of"):
        reason = "the view uses a virtual table or function that trusted_schema = OFF forbids"
    elif extended != code:
        reason = f"{reason} ({name})"
    return Unavailable(reason)


def to_write_failed(error: sqlite3.Error) -> LookupFailed:
    """Return the `Unavailable` or `Broken` for an error of SQLite during an import.

    The reason includes SQLite's message for a violated constraint, which names only columns. It
    omits the message of a trigger, which may contain data.
    """
    code = primary_code(error)
    if code == sqlite3.SQLITE_CONSTRAINT:
        is_own = error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_TRIGGER
        return Broken("a trigger refuses the users" if is_own else f"the table refuses: {error}")
    if code == sqlite3.SQLITE_READONLY and error.sqlite_errorcode not in _UNAVAILABLE_EXTENDED:
        return Unavailable("this user may not write the file")
    if code == sqlite3.SQLITE_FULL:
        return Unavailable("the disk of the file or of temporary files (SQLITE_TMPDIR) is full")
    return to_lookup_failed(error)


def primary_code(error: sqlite3.Error) -> int | None:
    """Return SQLite's primary result code, or ``None`` if Python raised the error itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF

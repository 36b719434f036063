"""What SQLite's errors mean for a lookup, in words that hold no data.

SQLite's own messages are not passed on: one of them quotes the value it stumbled over.
"""

from __future__ import annotations

import sqlite3

from tornado_idv import Broken, CouldNotTell, Unavailable

_BROKEN = {
    sqlite3.SQLITE_CORRUPT: "the database is damaged",
    sqlite3.SQLITE_NOTADB: "the file is not a database",
}
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "the database is locked",
    sqlite3.SQLITE_CANTOPEN: "the file, or one that SQLite needs beside it, cannot be opened",
    sqlite3.SQLITE_ERROR: "the table, or a column of it, is gone",
    sqlite3.SQLITE_INTERRUPT: "the query was stopped",
    sqlite3.SQLITE_IOERR: "the file cannot be read",
    sqlite3.SQLITE_LOCKED: "the database is locked",
}


def is_locked(error: sqlite3.Error) -> bool:
    """Whether the same query may succeed a moment later, when a writer has finished."""
    return _primary_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def could_not_tell(error: sqlite3.Error) -> CouldNotTell:
    """The `Unavailable` or `Broken` that an error of SQLite comes to."""
    code = _primary_code(error)
    if code is None:
        return _without_code(error)
    if code in _BROKEN:
        return Broken(_BROKEN[code])
    return Unavailable(_UNAVAILABLE.get(code, f"SQLite fails with {error.sqlite_errorname}"))


def _primary_code(error: sqlite3.Error) -> int | None:
    """The low byte of the result code; ``None`` for errors that Python's module raises itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _without_code(error: sqlite3.Error) -> CouldNotTell:
    """Of these, an `OperationalError` is text that cannot be decoded; the rest are closing."""
    if type(error) is sqlite3.OperationalError:
        return Broken("a value in the table is not valid UTF-8")
    return Unavailable("the connection is closed")

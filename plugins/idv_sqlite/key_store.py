"""The key store in a file: a SQLite database with a rollback journal.

WAL mode would be dangerous. Its ``-wal`` file stays while any process has the store open. If an
operator then replaces the store by another file, SQLite would apply the old ``-wal`` file to the
new store. A rollback journal exists only during a write. The concurrency of WAL mode is not needed,
because reads are short, and writers are rare.
"""

import os
import secrets
import sqlite3
import stat
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from idv_sqlite.errors import mapped_errors, primary_code
from idv_sqlite.files import sync, uri_of
from tornado_idv import FileSignature, KeyStoreError, KeyStoreLocation, MissingKeyStoreError

_APPLICATION_ID = 0x6964766B
"""SQLite's ``application_id`` of key stores: ASCII ``idvk``."""
_VERSION = 1
_CHANGES_KEPT = 10_000
"""Maximum rows in the table ``changes``. A service that misses more changes reads all keys."""

_TABLES = """
CREATE TABLE store (revision TEXT NOT NULL);
INSERT INTO store VALUES (hex(randomblob(16)));
CREATE TABLE keys (
    id TEXT PRIMARY KEY NOT NULL,
    created REAL NOT NULL,
    owner TEXT NOT NULL,
    scopes TEXT NOT NULL,
    not_before REAL,
    expires REAL,
    requests TEXT,
    misses TEXT,
    note TEXT NOT NULL,
    disabled INTEGER NOT NULL,
    revoked REAL
) WITHOUT ROWID;
CREATE TABLE tokens (
    digest BLOB PRIMARY KEY NOT NULL,
    id TEXT NOT NULL REFERENCES keys,
    created REAL NOT NULL,
    expires REAL
) WITHOUT ROWID;
CREATE TABLE last_used (id TEXT PRIMARY KEY NOT NULL, time REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE changes (number INTEGER PRIMARY KEY, revision TEXT, id TEXT);
"""

_CHANGED_IDS = {
    ("keys", "INSERT"): "SELECT NEW.id AS key_id",
    ("keys", "UPDATE"): "SELECT OLD.id AS key_id UNION SELECT NEW.id",
    ("keys", "DELETE"): "SELECT OLD.id AS key_id",
    # REPLACE deletes an existing token without a DELETE trigger.
    ("tokens", "INSERT"): "SELECT NEW.id AS key_id UNION "
    "SELECT id FROM tokens WHERE digest = NEW.digest",
    ("tokens", "UPDATE"): "SELECT OLD.id AS key_id UNION SELECT NEW.id UNION "
    "SELECT id FROM tokens WHERE digest = NEW.digest",
    ("tokens", "DELETE"): "SELECT OLD.id AS key_id",
}
# Triggers also see changes by other programs. For each change, the log has the ids of the keys, and
# the revision before the change.
_TRIGGERS = "".join(
    f"""
CREATE TRIGGER {table}_{event} AFTER {event} ON {table}
BEGIN UPDATE store SET revision = hex(randomblob(16)); END;
CREATE TRIGGER log_{table}_{event} BEFORE {event} ON {table} BEGIN
    INSERT INTO changes (revision, id) SELECT revision, key_id FROM store, ({ids});
    DELETE FROM changes WHERE number <= (SELECT max(number) FROM changes) - {_CHANGES_KEPT};
END;
"""  # noqa: S608 - constants
    for (table, event), ids in _CHANGED_IDS.items()
)

_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
{_TABLES}{_TRIGGERS}"""
_FIRST_CHANGE = """
SELECT min(number), (SELECT min(number) FROM changes) FROM changes WHERE revision = ?
"""
_CHANGED = "SELECT id FROM changes WHERE number >= ?"

_MISSING = (
    "there is no key store; restore it, or create the first one with "
    "tornado-idv keys issue ID --create"
)
_NO_TARGET = "the target of the symbolic link is missing; restore the key store, or remove the link"
_DAMAGED = "the key store is damaged; restore it from a backup"
_NO_STORE = "the file is not a key store"
_OPEN_TO_OTHERS = "other users have access to the key store; set its mode to 600"
_REASONS = {
    None: _DAMAGED,  # invalid UTF-8, or raised by `changed_rows`
    sqlite3.SQLITE_BUSY: "the key store is locked by another process",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _NO_STORE,
    sqlite3.SQLITE_ERROR: _DAMAGED,
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_CANTOPEN: (
        "the key store cannot be opened; this user needs permission to read and write it, and to "
        "write to its directory"
    ),
    sqlite3.SQLITE_READONLY: (
        "the key store cannot be written; this user needs permission to write it and its directory"
    ),
}


class SqliteKeyStore(KeyStoreLocation):
    """A key store in a file. ``setting`` is the path of the file."""

    setting: Path

    def __init__(self, setting: Path) -> None:
        super().__init__(setting, str(setting))
        self._written: tuple[FileSignature | None, bytes] = None, b""

    @contextmanager
    def connected(self, *, busy_timeout: float, read_only: bool) -> "Iterator[_Database]":
        """Open the file; see `KeyStoreLocation.connected`."""
        path = self.setting
        try:
            status = path.stat()
        except FileNotFoundError:
            reason = _NO_TARGET if path.is_symlink() else _MISSING
            raise MissingKeyStoreError(f"{path}: {reason}") from None
        except OSError as error:
            raise KeyStoreError(f"{path}: the key store cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(status.st_mode):
            raise KeyStoreError(f"{path}: {_NO_STORE}: not a regular file")
        if status.st_size == 0:
            raise KeyStoreError(f"{path}: the file is empty; restore the key store from a backup")
        with mapped_errors(self._to_error), closing(_connect(path, busy_timeout)) as database:
            database.execute(f"PRAGMA query_only = {read_only}")
            database.execute("PRAGMA trusted_schema = OFF")
            if database.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,):
                raise KeyStoreError(f"{path}: {_NO_STORE} but another SQLite database")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version != _VERSION:
                raise KeyStoreError(
                    f"{path}: the key store has schema version {version}, but this tornado-idv "
                    f"supports only version {_VERSION}"
                )
            # Otherwise a large change would lock out readers before its commit.
            database.execute("PRAGMA cache_spill = OFF")
            if (signature := FileSignature.find(path)) != self._written[0]:
                with database.reading():
                    count = database.serialize()[24:28]  # SQLite changes it with each write
                self.overwritten |= count == self._written[1]
                self._written = signature, count
            yield database

    def create(self) -> bool:
        """Create the store in a temporary file of mode 600, then link the file to its path."""
        path = self.setting
        if os.path.lexists(path):
            return False
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            draft.touch(0o600, exist_ok=False)
            try:
                with mapped_errors(self._to_error), closing(_connect(draft)) as database:
                    database.executescript(f"BEGIN; {_SCHEMA} COMMIT")
                if os.path.lexists(f"{path}-journal") and not os.path.lexists(path):
                    raise KeyStoreError(f"{path}-journal belongs to a removed key store; delete it")
                os.link(draft, path)
            finally:
                draft.unlink()
            sync(path.parent)
        except FileExistsError:
            return False  # created by another command meanwhile
        except OSError as error:
            text = f"the key store cannot be created: {error.strerror}"
            raise KeyStoreError(f"{path}: {text}") from None
        return True

    def warnings(self) -> list[str]:
        """Return a warning if other users have access to the file."""
        return [_OPEN_TO_OTHERS] if self.setting.stat().st_mode & 0o077 else []

    def _to_error(self, error: sqlite3.Error) -> KeyStoreError:
        code = primary_code(error)
        reason = _REASONS.get(code) or f"SQLite fails with {error.sqlite_errorname}"
        if code == sqlite3.SQLITE_CANTOPEN:
            try:  # SQLite gives no reason: find out if no file at all can be opened
                os.close(os.open(os.devnull, os.O_RDONLY))
            except OSError as general:
                reason = f"the key store cannot be opened: {general.strerror}"
        return KeyStoreError(f"{self.name}: {reason}")


class _Database(sqlite3.Connection):
    """A connection to the file of a key store; see `KeyDatabase`."""

    def changed_rows(
        self, sql: str, before: str | None
    ) -> tuple[Container[str] | None, Iterable[Sequence[Any]], str | None]:
        """Return the rows changed since the revision ``before``, from the log of changes.

        Under load, a read of all rows would take seconds: at each row, the sqlite3 module waits
        until the event loop releases the interpreter lock (GIL).
        """
        if self.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError
        ((revision,),) = self.execute("SELECT revision FROM store")
        ids = None
        with suppress(sqlite3.Error):  # raised for an id in the log that is not valid text
            ((first, oldest),) = self.execute(_FIRST_CHANGE, [before])
            # One change may have several rows in the log. If `first` is the oldest row, earlier
            # rows of the same change may have been removed.
            if first is not None and not first == oldest > 1:
                ids = {key_id for (key_id,) in self.execute(_CHANGED, [first])}
        if ids is None:  # the first read, or the revision is too old or of another store
            return None, self.execute(sql), revision
        return ids, self.execute(f"{sql} WHERE id IN ({_CHANGED})", [first]), revision

    @contextmanager
    def writing(self) -> Iterator[None]:
        if self.in_transaction:
            yield
            return
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # some errors have rolled back the transaction already
                self.execute("ROLLBACK")
            raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise `KeyStoreError` if the file is overwritten: the rows may mix old and new keys."""
        self.execute("BEGIN")
        try:
            path = Path(self.execute("PRAGMA database_list").fetchone()[2])
            self.execute("SELECT revision FROM store")  # locks writers out that use SQLite
            before = FileSignature.find(path)
            yield
            after = FileSignature.find(path)
            if before and after and before.is_same_file(after) and before != after:
                raise KeyStoreError(f"{path}: overwritten during a read; replace it by mv, not cp")
        finally:
            self.rollback()


def _connect(path: Path, busy_timeout: float = 5.0) -> _Database:
    return sqlite3.connect(
        uri_of(path), timeout=busy_timeout, isolation_level=None, uri=True, factory=_Database
    )

"""Key stores for tests, and ways in which one fails while it is used."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from pydantic import SecretStr

from idv_postgres.key_store import PostgresKeyStore
from idv_sqlite.key_store import SqliteKeyStore
from support.databases import sqlite_databases
from support.databases.postgres_server import Database
from support.processes.service import CONFIG
from tornado_idv.features.keys.editor import KeyEditor, KeyRecord, Token
from tornado_idv.keys.store import KeyStoreLocation
from tornado_idv.keys.token import digest, issue

CREATED = 1_800_000_000.0


def record(key_id: str, token: str, created: float = CREATED, **attributes: object) -> KeyRecord:
    tokens = (Token(digest(token), created),)
    return KeyRecord(key_id, created, tokens, **attributes)  # type: ignore[arg-type]


Place = Path | KeyStoreLocation


def at(place: Place) -> KeyStoreLocation:
    return SqliteKeyStore(place) if isinstance(place, Path) else place


def postgres_place(database: Database) -> PostgresKeyStore:
    """Return a place for a key store of the role ``idv``, where there is none."""
    create = f'GRANT CREATE ON DATABASE "{database.name}" TO idv;'
    database.run(
        f"SET client_min_messages = error; DROP SCHEMA IF EXISTS idv_keys CASCADE; {create}"
    )
    return PostgresKeyStore(SecretStr(database.dsn))


def config_with(dsn: str) -> str:
    """Return the configuration of a service with this key store, and users in users.yaml."""
    config = CONFIG.replace("auth:\n", f"auth:\n  store: {dsn}\n")
    return f"{config}  - {{name: users, kind: yaml, path: users.yaml}}\n"


@contextmanager
def open_store(place: Place, *, busy_timeout: float = 5.0) -> Iterator[KeyEditor]:
    with at(place).connected(busy_timeout=busy_timeout, read_only=False) as database:
        yield KeyEditor(database, at(place).name)


def make_store(place: Place, *key_ids: str) -> dict[str, str]:
    """Create a store with these keys, and return their tokens by their ids."""
    tokens = {key_id: issue(key_id) for key_id in key_ids}
    at(place).create()
    add(place, *(record(*each) for each in tokens.items()))
    return tokens


def add(place: Place, *records: KeyRecord) -> None:
    with open_store(place) as store:
        store.add(records)


def read(place: Place) -> dict[str, KeyRecord]:
    with open_store(place) as store:
        return {each.id: each for each in store.records()}


def execute(path: Path, *statements: str) -> None:
    """Change a store without our commands."""
    sqlite_databases.run(path, ";".join(statements))


Fault = Callable[[Path], AbstractContextManager[None]]
"""Makes the store at a path fail, and work again at the end."""


def deleted(path: Path) -> AbstractContextManager[None]:
    return _replaced(path, lambda _: None)


def emptied(path: Path) -> AbstractContextManager[None]:
    return _overwritten(path, b"")


def truncated(path: Path) -> AbstractContextManager[None]:
    return _overwritten(path, path.read_bytes()[:5000])


def garbage(path: Path) -> AbstractContextManager[None]:
    return _overwritten(path, b"no database " * 1000)


def another_database(path: Path) -> AbstractContextManager[None]:
    return _replaced(path, lambda other: execute(other, "PRAGMA application_id = 1"))


@contextmanager
def newer_schema(path: Path) -> Iterator[None]:
    execute(path, "PRAGMA user_version = 99")
    yield
    execute(path, "PRAGMA user_version = 1")


def fifo(path: Path) -> AbstractContextManager[None]:
    return _replaced(path, os.mkfifo)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("UPDATE keys SET note = 'locked'")
        yield


@contextmanager
def _replaced(path: Path, make: Callable[[Path], object]) -> Iterator[None]:
    """Rename the file, and make another one at its path."""
    kept = path.rename(path.with_suffix(".kept"))
    make(path)
    yield
    kept.replace(path)


@contextmanager
def _overwritten(path: Path, content: bytes) -> Iterator[None]:
    """Write into the same file, as a copy over it does."""
    good = path.read_bytes()
    path.write_bytes(content)
    yield
    path.write_bytes(good)

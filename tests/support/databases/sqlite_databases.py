"""SQLite files with users, and backends over them."""

import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from idv_sqlite.backend import SqliteBackend
from idv_sqlite.options import SqliteOptions
from support.databases.user_lists import cells
from tornado_idv import StartError, User
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.registry import open_backends

ALICE = User("Free", "4000123412341234", "alice")
BOB = User("Pro", "0012345670", "bob", "https://elsewhere.example/bob")
USERS = """CREATE TABLE users (
    nickname TEXT PRIMARY KEY, card_number TEXT NOT NULL UNIQUE, plan TEXT NOT NULL,
    profile_url TEXT
);"""


def run(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def insert(path: Path, *users: User, into: str = "users") -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(f"INSERT INTO {into} VALUES (?, ?, ?, ?)", map(cells, users))


def write(path: Path, *users: User) -> Path:
    run(path, USERS)
    insert(path, *users)
    return path


@asynccontextmanager
async def serving(
    path: Path, case: str = "preserve", **options: Any
) -> AsyncIterator[SqliteBackend]:
    """An open backend that checks its file only when the test calls it."""
    given = {"name": "tested", "kind": "sqlite", "path": path.name, **options}
    context = {"nickname_case": case, "base_dir": path.parent}
    backend = SqliteBackend(SqliteOptions.model_validate(given, context=context))
    backend.check_interval = 3600
    async with open_backends([backend]):
        yield backend


def levels(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == level]


async def start_error(backend: AnyBackend) -> str:
    """Why the backend does not open; no thread is left behind, also if it opens after all."""
    try:
        with pytest.raises(StartError) as caught, no_thread_left():
            await backend.open()
    finally:
        await backend.close()
    return str(caught.value)


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Every thread begun within has ended, or is about to without being asked again.

    Daemon threads are of other services in this process; those of a connection are none.
    """
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join(timeout=20)
            assert not thread.is_alive()

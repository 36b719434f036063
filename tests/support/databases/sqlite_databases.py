"""SQLite files with users, and backends over them."""

import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tornado.ioloop import IOLoop

from idv_sqlite.backend import SqliteBackend
from idv_sqlite.options import SqliteOptions
from support.databases.user_lists import cells
from tornado_idv import StartError, User
from tornado_idv.kit.testing import make_backend
from tornado_idv.registry import opened_backend

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


class Served(SqliteBackend):
    """A backend that checks its file only when the test calls it, and its reported changes."""

    check_interval = 3600

    def __init__(self, options: SqliteOptions) -> None:
        super().__init__(options)
        self.changes: list[str] = []
        self.on_change(lambda: self.changes.append("changed"))


@asynccontextmanager
async def serving(path: Path, case: str = "preserve", **options: Any) -> AsyncIterator[Served]:
    given = {"name": "tested", "kind": "sqlite", "path": path.name, **options}
    context = {"nickname_case": case, "base_dir": path.parent}
    backend = Served(SqliteOptions.model_validate(given, context=context))
    async with opened_backend(backend):
        yield backend


@contextmanager
def serving_in(io_loop: IOLoop, path: Path) -> Iterator[Served]:
    """An open backend for a test in this loop; no thread is left behind."""
    service = serving(path)
    with no_thread_left():
        yield io_loop.run_sync(service.__aenter__)
        io_loop.run_sync(lambda: service.__aexit__(None, None, None))


def levels(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == level]


async def start_error(path: Path, **options: Any) -> str:
    """Why a backend over the file does not open; no thread is left behind, also if it opens."""
    backend = make_backend(SqliteBackend, path.parent, path=path.name, **options)
    try:
        with no_thread_left(), pytest.raises(StartError) as caught:
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

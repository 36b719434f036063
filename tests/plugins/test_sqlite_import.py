"""A SQLite file that is replaced by an import, beside other writers of it."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from idv_sqlite.backend import SqliteBackend
from idv_sqlite.store import SqliteUserStore
from support.sqlite_databases import ALICE, BOB, run, write
from tornado_idv import Broken, StartError, User
from tornado_idv.testing import make_backend

CARL = User("Free", "3", "carl")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "people.db", ALICE)


def store(path: Path) -> SqliteUserStore:
    backend = make_backend(SqliteBackend, path.parent, path=path.name)
    return SqliteBackend.user_store(backend.options)


def accept(_: Iterable[tuple[int, str]], _removed: int, _stored: int) -> None:
    """Import whatever is left."""


def test_file_that_the_service_would_refuse_does_not_get_the_name(path: Path) -> None:
    """A trigger puts @ in front of nicknames, with which no lookup would find them."""
    run(
        path,
        "CREATE TRIGGER at AFTER INSERT ON users BEGIN UPDATE users "
        "SET nickname = '@' || nickname WHERE nickname = NEW.nickname; END",
    )
    content = path.read_bytes()
    with pytest.raises(Broken, match="stored with @ in front"):
        store(path).replace([(1, BOB)], accept)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_file_that_another_import_has_just_renamed_is_not_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened under its hidden name, and is what the service reads when it is locked."""
    hidden = write(path.with_name(".people.db.import"), BOB)
    content = hidden.read_bytes()
    lock = fcntl.flock

    def rename_and_lock(descriptor: int, operation: int) -> None:
        hidden.replace(path)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", rename_and_lock)
    with pytest.raises(StartError, match="another import is running"):
        store(path).replace([(1, CARL)], accept)
    assert path.read_bytes() == content


def test_second_import_of_the_same_file_is_refused_and_the_first_one_completes(path: Path) -> None:
    def import_too(*_: object) -> None:
        with pytest.raises(StartError, match="another import is running"):
            store(path).replace([(1, CARL)], accept)

    store(path).replace([(1, BOB)], import_too)
    assert list(store(path).records()) == [BOB]


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_other_writers_wait_for_the_import_and_readers_do_not(path: Path, mode: str) -> None:
    """What they wrote into the old file would be lost."""
    run(path, f"PRAGMA journal_mode = {mode}")
    refused = []
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:

        def write_meanwhile(*_: object) -> None:
            with pytest.raises(sqlite3.OperationalError, match="database is locked") as locked:
                other.execute("INSERT INTO users VALUES ('carl', '3', 'Free', NULL)")
            refused.append(locked)
            assert other.execute("SELECT nickname FROM users").fetchall() == [("alice",)]

        store(path).replace([(1, BOB)], write_meanwhile)
    assert len(refused) == 1
    assert list(store(path).records()) == [BOB]

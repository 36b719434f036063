"""A SQLite file that is replaced by an import, beside other writers of it."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from idv_sqlite.backend import SqliteBackend
from idv_sqlite.store import SqliteUserStore
from support.databases.sqlite_databases import ALICE, BOB, run, write
from tornado_idv import Broken, LookupFailed, StartError, Unavailable, User
from tornado_idv.testing import make_backend

CARL = User("Free", "3", "carl")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "people.db", ALICE)


def store(path: Path, **options: object) -> SqliteUserStore:
    backend = make_backend(SqliteBackend, path.parent, path=path.name, **options)
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


def test_error_before_the_rename_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written does not reach the disk."""
    content = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StartError, match=r"people\.db: cannot be replaced: Input/output error"):
        store(path).replace([(1, BOB)], accept)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_file_keeps_its_owner(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda _, user, group: owners.append((user, group)))
    store(path).replace([(1, BOB)], accept)
    assert owners == [(path.stat().st_uid, path.stat().st_gid)]


def test_file_that_cannot_keep_its_owner_is_not_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service might not be able to read the new one."""

    def fail(*_: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", fail)
    with pytest.raises(StartError, match="run the import as that user"):
        store(path).replace([(1, BOB)], accept)
    assert list(store(path).records()) == [ALICE]


def test_link_in_place_of_the_hidden_file_is_not_followed(path: Path, tmp_path: Path) -> None:
    victim = write(tmp_path / "victim.db", CARL)
    path.with_name(".people.db.import").symlink_to(victim)
    with pytest.raises(StartError, match=r"\.people\.db\.import: cannot be written"):
        store(path).replace([(1, BOB)], accept)
    assert list(store(victim).records()) == [CARL]


def test_hidden_file_of_the_next_import_is_not_deleted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may begin as soon as the file has its name, before the folder is synced."""
    hidden, sync = path.with_name(".people.db.import"), os.fsync

    def begin_next_import(descriptor: int) -> None:
        sync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            hidden.touch()

    monkeypatch.setattr(os, "fsync", begin_next_import)
    store(path).replace([(1, BOB)], accept)
    assert hidden.exists()


def test_link_to_the_file_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    store(link).replace([(1, BOB)], accept)
    assert link.is_symlink()
    assert list(store(path).records()) == [BOB]


def test_empty_file_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    path.touch()
    done = store(path).replace([(1, BOB)], accept)
    assert (done.added, list(store(path).records())) == (1, [BOB])


def test_file_without_the_table_is_refused_with_what_there_is(path: Path) -> None:
    """Also one whose columns would change card numbers."""
    run(path, "ALTER TABLE users RENAME TO people")
    with pytest.raises(Unavailable, match='there is no table "users"; there are: "people"'):
        store(path).merge([(1, BOB)], accept)
    run(path, "CREATE TABLE users (nickname TEXT, card_number INTEGER, plan TEXT)")
    with pytest.raises(Broken, match="turns digits into numbers"):
        store(path).merge([(1, BOB)], accept)


def test_view_with_capitals_is_no_table(path: Path) -> None:
    run(path, "ALTER TABLE users RENAME TO people; CREATE VIEW Users AS SELECT * FROM people")
    with pytest.raises(StartError, match="is a view, and cannot be imported into"):
        store(path).merge([(1, BOB)], accept)


@pytest.mark.parametrize("is_new", [True, False])
def test_configured_column_of_profile_urls_is_written(path: Path, *, is_new: bool) -> None:
    """In any case, in which SQLite compares names."""
    if is_new:
        path.unlink()
    else:
        run(path, "ALTER TABLE users RENAME COLUMN profile_url TO Homepage")
    columns = store(path, columns={"profile_url": "homepage"})
    columns.replace([(1, BOB)], accept)
    assert list(columns.records()) == [BOB]


def test_difference_that_a_column_ignores_is_a_change(path: Path) -> None:
    run(
        path,
        "DROP TABLE users; CREATE TABLE users (nickname TEXT COLLATE NOCASE, "
        "card_number TEXT, plan TEXT COLLATE NOCASE);"
        "INSERT INTO users VALUES ('alice', '1', 'free')",
    )
    done = store(path).merge([(1, User("Free", "1", "alice"))], accept)
    assert (done.updated, next(store(path).records()).plan) == (1, "Free")


def test_new_table_takes_no_user_without_a_value(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    store(path).replace([(1, ALICE)], accept)
    for row in ("NULL, '1', 'Free'", "'carl', NULL, 'Free'", "'carl', '1', NULL"):
        with pytest.raises(sqlite3.IntegrityError, match="NOT NULL"):
            run(path, f"INSERT INTO users VALUES ({row}, NULL)")


def test_trigger_that_cannot_be_trusted_is_not_run(path: Path) -> None:
    """Such a file may come from anywhere."""
    query = "SELECT * FROM pragma_table_info('users')"
    run(path, f"CREATE TRIGGER unsafe AFTER INSERT ON users BEGIN {query}; END")
    with pytest.raises(LookupFailed, match="that SQLite refuses"):
        store(path).merge([(1, BOB)], accept)
    assert list(store(path).records()) == [ALICE]


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
@pytest.mark.parametrize("write_all", [SqliteUserStore.replace, SqliteUserStore.merge])
def test_other_writers_wait_for_the_import_and_readers_do_not(
    path: Path, mode: str, write_all: Callable[..., object]
) -> None:
    """What they wrote into the old file would be lost."""
    run(path, f"PRAGMA journal_mode = {mode}")
    refused = []
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:

        def write_meanwhile(*_: object) -> None:
            with pytest.raises(sqlite3.OperationalError, match="database is locked") as locked:
                other.execute("INSERT INTO users VALUES ('carl', '3', 'Free', NULL)")
            refused.append(locked)
            assert other.execute("SELECT nickname FROM users").fetchall() == [("alice",)]

        write_all(store(path), [(1, BOB)], write_meanwhile)
    assert len(refused) == 1
    assert next(store(path).records()) in {ALICE, BOB}


def test_table_is_found_in_any_case(path: Path) -> None:
    assert store(path, table="USERS").count() == 1

"""The user store of the plugin sqlite, in both journal modes; what only files do."""

import errno
import fcntl
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from idv_sqlite.backend import SqliteBackend
from idv_sqlite.errors import to_write_failed
from support.databases.directory_sync import fail_sync
from support.databases.user_store_conformance import (
    ALICE,
    BOB,
    UserStoreConformance,
    UserStoreTransactions,
)
from support.databases.user_tables import UNIQUE, Cells, Mode, UserTable
from tornado_idv import Broken, LookupFailed, StartError, User


class SqliteTable(UserTable):
    kind = SqliteBackend
    caseless = "COLLATE NOCASE"
    row_id = "id INTEGER PRIMARY KEY"
    unreachable: ClassVar = {"path": "absent/people.db"}

    def __init__(self, folder: Path, mode: str = "DELETE") -> None:
        super().__init__(folder, kind="sqlite", path="people.db")
        self.path = folder / "people.db"
        self.run(f"PRAGMA journal_mode = {mode}; CREATE TABLE users ({UNIQUE})")

    def run(self, script: str) -> list[Cells]:
        with closing(sqlite3.connect(self.path, timeout=0)) as connection:
            if script.startswith("SELECT"):
                return connection.execute(script).fetchall()
            connection.executescript(script)
            return []

    def lock(self) -> None:
        self.run("BEGIN IMMEDIATE; COMMIT")

    @contextmanager
    def writing(self, script: str) -> Iterator[None]:
        with closing(sqlite3.connect(self.path, check_same_thread=False)) as connection:
            connection.executescript(f"BEGIN IMMEDIATE; {script}")
            yield
            connection.commit()

    def wait_briefly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        connect = sqlite3.connect
        monkeypatch.setattr(
            sqlite3,
            "connect",
            lambda *given, **options: connect(*given, **options | {"timeout": 0}),
        )

    def fail_commit(self, monkeypatch: pytest.MonkeyPatch, *, uncertain: bool) -> None:
        fail_sync(monkeypatch, of_directories=uncertain)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[SqliteTable]:
    """No hidden file is left."""
    yield SqliteTable(tmp_path)
    assert list(tmp_path.glob(".*")) == []


class TestConformance(UserStoreConformance):
    """All of it."""


class TestTransactionsInWalMode(UserStoreTransactions):
    commit_fails = False

    @pytest.fixture
    def table(self, tmp_path: Path) -> SqliteTable:
        return SqliteTable(tmp_path, "WAL")


def test_file_in_wal_mode_is_changed_in_a_transaction(tmp_path: Path) -> None:
    """A renamed file would be read with the -wal file of the old one."""
    table = SqliteTable(tmp_path, "WAL")
    table.write(BOB)
    inode = table.path.stat().st_ino
    with closing(sqlite3.connect(table.path)) as reader:
        reader.execute("BEGIN")
        query = "SELECT nickname FROM users"
        assert reader.execute(query).fetchall() == [("bob",)]
        table.load([ALICE])
        assert reader.execute(query).fetchall() == [("bob",)]
        reader.execute("COMMIT")
        assert reader.execute(query).fetchall() == [("alice",)]
    assert table.path.stat().st_ino == inode


@pytest.mark.parametrize(("mode", "name"), [("WAL", "wal"), ("DELETE", "journal")])
def test_sidecar_of_a_removed_file_brings_no_user_back(
    tmp_path: Path, mode: str, name: str
) -> None:
    """SQLite would apply it to the new file."""
    table, path = SqliteTable(tmp_path, mode), tmp_path / f"people.db-{name}"
    table.write(BOB)
    with closing(sqlite3.connect(table.path, isolation_level=None)) as connection:
        connection.executescript("PRAGMA cache_size = 1; BEGIN; UPDATE users SET plan = 'old'")
        connection.execute("SAVEPOINT s" if name == "journal" else "COMMIT")
        content = path.read_bytes()
    table.path.unlink()
    path.write_bytes(content)
    with pytest.raises(StartError, match="remove the -wal or -journal of the old database"):
        table.load([ALICE])
    path.unlink()
    table.load([ALICE])
    assert table.run("SELECT nickname FROM users NOT INDEXED") == [("alice",)]


@pytest.mark.parametrize(("url", "fold"), [("profile_url", False), ("Homepage", True)])
def test_new_file_has_constraints(table: SqliteTable, url: str, *, fold: bool) -> None:
    """And a column of profile URLs, whatever its name is."""
    table.path.unlink()
    columns = {"profile_url": url.lower()}
    assert table.load([ALICE, BOB], columns=columns, fold=fold) == ((2, 2, 0, 0), [])
    assert list(table.store(columns={"profile_url": url}).records()) == [ALICE, BOB]
    assert table.run("SELECT * FROM pragma_integrity_check") == [("ok",)]
    for row in (
        *("NULL, '3', 'Free'", "'carl', NULL, 'Free'", "'carl', '3', NULL"),
        f"'{'ALICE' if fold else 'alice'}', '3', 'Free'",
        f"'carl', '{ALICE.card_number}', 'Free'",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            table.run(f"INSERT INTO users VALUES ({row}, NULL)")


@pytest.mark.parametrize("mode", ["replace", "merge"])
def test_file_created_during_its_import_is_not_replaced(table: SqliteTable, mode: Mode) -> None:
    """By another program, whose users would be lost."""
    table.path.unlink()
    with pytest.raises(StartError, match="import again"):
        table.load([ALICE], mode, meanwhile=lambda: SqliteTable(table.folder).write(BOB))
    assert table.users() == {BOB}


@pytest.mark.parametrize("mode", ["replace", "merge"])
def test_file_that_is_replaced_during_its_import_stays(table: SqliteTable, mode: Mode) -> None:
    """Its users would be lost, or --merge would change only the old file."""
    table.write(BOB)
    other = Path(shutil.copy(table.path, table.folder / "other.db"))
    with pytest.raises(StartError, match="another program replaced the file"):
        table.load([ALICE], mode, meanwhile=lambda: other.replace(table.path))
    other = Path(shutil.copy(table.path, table.folder / "other.db"))
    with table.store().transaction(in_place=True) as transaction:
        other.replace(table.path)  # as by an import for which this one has waited
        with pytest.raises(LookupFailed, match="another program replaced the file"):
            transaction.insert(["nickname", "card_number", "plan"], [["carl", "3", "Free"]])
    assert table.users() == {BOB}


def test_empty_file_keeps_its_mode_and_a_failed_one_is_deleted(table: SqliteTable) -> None:
    """Others must not read the users."""
    table.path.unlink()
    with pytest.raises(ZeroDivisionError):
        table.load([ALICE], meanwhile=lambda: 1 / 0)
    assert not table.path.exists()
    table.path.write_bytes(b"")
    table.path.chmod(0o600)
    table.load([ALICE])
    assert (table.users(), table.path.stat().st_mode & 0o777) == ({ALICE}, 0o600)


def test_other_tables_links_and_the_mode_and_owner_of_the_file_are_kept(
    table: SqliteTable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table.run("CREATE TABLE notes (text); INSERT INTO notes VALUES ('kept')")
    table.path.chmod(0o640)
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(table.path)
    owners: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda _, user, group: owners.append((user, group)))
    table.load([ALICE], path=str(link))
    assert (link.is_symlink(), table.users()) == (True, {ALICE})
    assert table.run("SELECT * FROM notes") == [("kept",)]
    status = table.path.stat()
    assert (status.st_mode & 0o777, owners) == (0o640, [(status.st_uid, status.st_gid)])


def test_file_without_its_owner_is_kept(
    table: SqliteTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service might not be able to read the new one."""
    table.write(BOB)

    def fail(*_: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", fail)
    with pytest.raises(StartError, match="run the import as the file's owner"):
        table.load([ALICE])
    assert table.users() == {BOB}


def test_file_that_the_service_would_refuse_does_not_get_the_name(table: SqliteTable) -> None:
    """A trigger puts @ in front of nicknames, with which no lookup would find them."""
    table.run(
        "CREATE TRIGGER at AFTER INSERT ON users BEGIN UPDATE users "
        "SET nickname = '@' || nickname WHERE nickname = NEW.nickname; END"
    )
    with pytest.raises(Broken, match="stored with a leading @"):
        table.load([ALICE])
    assert table.users() == set()


@pytest.mark.parametrize(
    ("link", "message"), [(os.symlink, ": cannot be written"), (os.link, " is a hard link")]
)
def test_link_in_place_of_the_hidden_file_is_not_followed(
    tmp_path: Path, link: Callable[[Path, Path], None], message: str
) -> None:
    table, victim = SqliteTable(tmp_path), tmp_path / "victim"
    victim.write_text("kept")
    link(victim, table.path.with_name(".people.db.import"))
    with pytest.raises(StartError, match=rf"\.people\.db\.import{message}"):
        table.load([ALICE])
    assert victim.read_text() == "kept"


def test_hidden_file_of_a_killed_import_is_used_again(table: SqliteTable) -> None:
    table.path.with_name(".people.db.import").write_bytes(b"what a killed import left")
    table.load([ALICE])
    assert table.users() == {ALICE}


def test_hidden_file_of_next_import_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may begin as soon as the file has its name, before the folder is synced."""
    table, sync = SqliteTable(tmp_path), os.fsync
    hidden = table.path.with_name(".people.db.import")

    def begin_next_import(descriptor: int) -> None:
        sync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            hidden.touch()

    monkeypatch.setattr(os, "fsync", begin_next_import)
    table.load([ALICE])
    assert hidden.exists()


def test_second_import_of_the_same_file_is_refused_and_the_first_one_completes(
    table: SqliteTable,
) -> None:
    def import_too() -> None:
        with pytest.raises(StartError, match="another import is running"):
            table.load([BOB])

    table.load([ALICE], meanwhile=import_too)
    assert table.users() == {ALICE}


def test_renamed_file_is_not_written(table: SqliteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was opened under its hidden name, and is what the service reads when it is locked."""
    table.write(BOB)
    hidden, lock = table.path.with_name(".people.db.import"), fcntl.flock
    shutil.copy(table.path, hidden)

    def rename_and_lock(descriptor: int, operation: int) -> None:
        hidden.replace(table.path)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", rename_and_lock)
    with pytest.raises(StartError, match="another import is running"):
        table.load([ALICE])
    assert table.users() == {BOB}


def test_table_is_found_in_any_case_and_a_view_is_none(table: SqliteTable) -> None:
    table.write(BOB)
    assert table.store(table="USERS").count() == 1
    table.run("ALTER TABLE users RENAME TO people; CREATE VIEW Users AS SELECT * FROM people")
    with pytest.raises(StartError, match="is a view, and cannot be imported into"):
        table.load([ALICE], "merge")
    assert list(table.store().records()) == [BOB]


def test_trigger_that_cannot_be_trusted_is_not_run(table: SqliteTable) -> None:
    """Such a file may come from anywhere."""
    query = "SELECT * FROM pragma_table_info('users')"
    table.run(f"CREATE TRIGGER unsafe AFTER INSERT ON users BEGIN {query}; END")
    with pytest.raises(LookupFailed, match="that trusted_schema = OFF forbids"):
        table.load([ALICE], "merge")
    own = "CREATE TRIGGER own BEFORE INSERT ON users BEGIN SELECT RAISE(ABORT, 'alice'); END"
    table.run(f"DROP TRIGGER unsafe; {own}")
    with pytest.raises(Broken, match=r"^a trigger refuses the users$"):
        table.load([ALICE], "merge")
    assert table.users() == set()


def test_cause_of_a_failed_write_is_reported(table: SqliteTable) -> None:
    error = sqlite3.OperationalError("x")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    assert to_write_failed(error).reason.startswith("the disk of the file or of temporary files")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_READONLY, "x"
    assert to_write_failed(error).reason == "this user may not write the file"
    table.write(BOB)
    table.run("CREATE TABLE n (of REFERENCES users (nickname)); INSERT INTO n VALUES ('bob')")
    with pytest.raises(Broken, match="the table refuses: FOREIGN KEY"):
        table.load([ALICE])


@pytest.mark.parametrize("row", [("", 3, 4), ("AUTOINCREMENT", 3, 9), ("", 2**63 - 1, 1)])
def test_number_of_a_removed_row_is_not_reused(table: SqliteTable, row: Any) -> None:
    """Other tables may refer to it without a foreign key. No number follows the last possible."""
    kind, removed, number = row
    table.create(f"id INTEGER PRIMARY KEY {kind}, nickname TEXT, card_number TEXT, plan TEXT")
    table.run(f"INSERT INTO users VALUES ({removed}, 'carl', '3', 'Free')")
    if kind:
        table.run("UPDATE sqlite_sequence SET seq = 8")
    table.load([ALICE], table="Users")
    assert table.run("SELECT id, nickname FROM users") == [(number, "alice")]


def test_row_whose_nickname_is_in_bytes_is_updated(table: SqliteTable) -> None:
    """Lookups fail for it; it keeps its number."""
    table.create("id INTEGER PRIMARY KEY, nickname TEXT, card_number TEXT, plan TEXT")
    table.run(f"INSERT INTO users VALUES (7, x'{b'alice'.hex()}', '1', 'Free')")
    assert table.load([ALICE]) == ((1, 0, 1, 0), [])
    assert table.run("SELECT * FROM users") == [(7, "alice", "1", "Free")]


@pytest.mark.parametrize("end", [") WITHOUT ROWID", ", Rowid, _ROWID_, OID)"])
def test_case_counts_in_the_key_of_a_row_without_a_number(table: SqliteTable, end: str) -> None:
    """These are three users: the column ignores case, and the service does not."""
    table.run(
        "DROP TABLE users; CREATE TABLE users ("
        f"nickname TEXT COLLATE NOCASE, card_number TEXT PRIMARY KEY, plan TEXT{end};"
        "INSERT INTO users (nickname, card_number, plan) VALUES "
        "('alice', '1', 'Free'), ('Alice', '3', 'Free'), ('ALICE', '4', 'Free')"
    )
    assert table.load([ALICE, User("Pro", "4", "ALICE")]) == ((2, 0, 1, 1), [])
    rows = table.run("SELECT nickname, card_number, plan FROM users")
    assert rows == [("alice", "1", "Free"), ("ALICE", "4", "Pro")]
    # One of two rows with this key is named by a rejected row. Both would be removed together.
    table.run("UPDATE users SET nickname = 'bob'")
    table.load_rows([(2, (ALICE.nickname, "5", "Free", None)), (3, ("b b", "4", "Free", None))])
    rows = table.run("SELECT nickname, card_number FROM users ORDER BY 2")
    assert rows == [("bob", "1"), ("bob", "4"), ("alice", "5")]


def test_rows_are_left_without_an_error_after_the_end_of_an_import(table: SqliteTable) -> None:
    """As after a signal: what fails then would be printed with a stack trace."""
    table.write(ALICE, BOB)
    with table.store().transaction(in_place=True) as transaction:
        rows = transaction.stored()
        next(rows)
    rows.close()


def test_link_to_itself_is_not_replaced(tmp_path: Path) -> None:
    table, link = SqliteTable(tmp_path), tmp_path / "link.db"
    link.symlink_to(link)
    with pytest.raises(StartError, match=r"link\.db: cannot be used: "):
        table.load([ALICE], path=str(link))
    assert link.is_symlink()

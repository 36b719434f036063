"""The key store in a file: its schema, its faults, and the changes of commands."""

import os
import re
import sqlite3
import stat
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from idv_sqlite.key_store import SqliteKeyStore
from support.databases import key_stores
from support.databases.key_stores import (
    CREATED,
    deleted,
    execute,
    make_store,
    open_store,
    read,
    record,
)
from support.processes.forking import fork
from support.processes.permissions import public_directory, unprivileged
from support.processes.process import TIMEOUT
from support.processes.process_usage import descriptors
from tornado_idv.errors import KeyStoreError
from tornado_idv.features.keys.editor import KeyEditor, Token
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.keys.store import EMPTY, locate_store
from tornado_idv.keys.token import check_token, digest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


def test_store_can_be_read_by_its_user_alone(path: Path) -> None:
    """Also the journal beside it while a change is written; afterwards there is none."""
    make_store(path, "shop")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE keys SET note = 'changed'")
        files = sorted(path.parent.iterdir())
        assert [each.name for each in files] == ["keys.db", "keys.db-journal"]
        assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
        connection.commit()
        assert list(path.parent.iterdir()) == [path]


def test_store_without_a_plugin_or_a_folder_cannot_be_created(path: Path) -> None:
    with pytest.raises(KeyStoreError, match="no plugin supports a key store in a file; supported"):
        locate_store(path, Kinds())
    with pytest.raises(KeyStoreError, match=r"cannot be created: No such file or directory"):
        SqliteKeyStore(path.parent / "none" / "keys.db").create()
    with pytest.raises(KeyStoreError, match="cannot be read: Not a directory"):
        read_whole(Path(__file__) / "keys.db")


def test_store_not_created_leaves_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another command is faster, and writes to it."""
    make_store(path, "shop")
    first, lexists = iter([False]), os.path.lexists
    monkeypatch.setattr(os.path, "lexists", lambda each: next(first, lexists(each)))
    with closing(sqlite3.connect(path)) as other:
        other.execute("UPDATE keys SET note = 'changed'")
        assert not SqliteKeyStore(path).create()
        assert len([*path.parent.iterdir()]) == len([path, "its journal"])
    assert list(read(path)) == ["shop"]


def test_journal_of_a_removed_store_does_not_bring_its_keys_back(path: Path) -> None:
    """SQLite would apply it to the new file. A command was killed before it was removed."""
    make_store(path, "leaked")
    journal = Path(f"{path}-journal")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript("PRAGMA cache_size = 1; BEGIN; UPDATE tokens SET created = 2.0")
        connection.execute("UPDATE keys SET note = hex(zeroblob(3000))")
        content = journal.read_bytes()
    path.unlink()
    journal.write_bytes(content)
    with pytest.raises(KeyStoreError, match="belongs to a removed key store; delete it"):
        SqliteKeyStore(path).create()
    assert list(path.parent.iterdir()) == [journal]
    journal.unlink()
    assert SqliteKeyStore(path).create()
    assert read(path) == {}


def test_key_that_is_added_while_it_is_looked_for_is_absent_or_whole(path: Path) -> None:
    make_store(path, "shop")

    def add_before(statement: str) -> None:
        if "LEFT JOIN" in statement:
            with suppress(KeyStoreError), open_store(path, busy_timeout=0.01) as other:
                other.add([record("new", "new")])

    with open_store(path) as store:
        store._database.set_trace_callback(add_before)  # noqa: SLF001 - another writer between two statements
        with pytest.raises(KeyStoreError, match="there is no key with this id"):
            store.find("new")


@pytest.mark.slow
def test_command_that_is_killed_has_made_its_whole_change_or_none(path: Path) -> None:
    """And the token that one has printed and confirmed is in the store."""
    make_store(path, "shop")
    for number in range(0, 12, 2):
        before = read(path)["shop"].tokens
        output = path.with_name("output")
        with output.open("w") as file:
            rotate = ("keys", "rotate", "shop", "--store", str(path))
            command = fork(*rotate, stdout=file.fileno(), stderr=2)
        time.sleep(number / 100)  # a command takes 40 ms on a quiet machine, 100 ms on a busy one
        command.kill()
        code, added = command.wait(TIMEOUT), set(read(path)["shop"].tokens) - set(before)
        if code == 0 or added:
            assert [each.expires for each in added if each.expires is None] == [None]
        if code == 0:
            check_token(token := output.read_text().removesuffix("\n"))
            assert digest(token) in {each.digest for each in added}


def read_whole(path: Path) -> None:
    with open_store(path, busy_timeout=0.01) as store:
        store.api_keys(EMPTY)
        list(store.records())


REASONS: dict[key_stores.Fault, str] = {
    key_stores.deleted: (
        "there is no key store; restore it, or create the first one with "
        "tornado-idv keys issue ID --create"
    ),
    key_stores.emptied: "the file is empty; restore the key store from a backup",
    key_stores.truncated: "the key store is damaged; restore it from a backup",
    key_stores.garbage: "the file is not a key store",
    key_stores.another_database: "the file is not a key store but another SQLite database",
    key_stores.newer_schema: (
        "the key store has schema version 99, but this tornado-idv supports only version 1"
    ),
    key_stores.fifo: "the file is not a key store: not a regular file",
    key_stores.locked: "the key store is locked by another process",
}


@pytest.mark.parametrize("fault", REASONS)
def test_store_that_cannot_be_read_is_reported_in_a_sentence(
    path: Path, fault: key_stores.Fault
) -> None:
    make_store(path, "shop")
    reason = re.escape(f"{path}: {REASONS[fault]}")
    with fault(path):
        with pytest.raises(KeyStoreError, match=f"^{reason}$"):
            read_whole(path)
        if fault is deleted:
            assert not path.exists()
    assert list(read(path)) == ["shop"]


def test_page_that_lost_a_row_does_not_make_its_key_unknown(path: Path) -> None:
    make_store(path, *(f"key-{i}" for i in range(200)))
    content = bytearray(path.read_bytes())
    leaves = [at for at in range(0, len(content), 4096) if content[at] == 10]
    at = next(each for each in leaves if b"key-150" in content[each : each + 4096])
    content[at + 4] -= 1  # the number of its rows
    path.write_bytes(content)
    with pytest.raises(KeyStoreError, match="is damaged"):
        read_whole(path)


def test_error_of_a_statement_is_explained(path: Path) -> None:
    make_store(path, "shop")
    error = sqlite3.OperationalError()
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "x"
    with pytest.raises(KeyStoreError, match="the disk is full"), open_store(path):
        raise error
    reading = SqliteKeyStore(path).connected(busy_timeout=0.0, read_only=True)
    with pytest.raises(KeyStoreError, match="cannot be written"), reading as database:
        KeyEditor(database, "keys.db").revoke("shop", CREATED)
    writing = SqliteKeyStore(path).connected(busy_timeout=0.0, read_only=False)
    failing = pytest.raises(KeyStoreError, match="SQLite fails with SQLITE_CONSTRAINT")
    with failing, writing as database, database.writing():  # it ends the transaction itself
        database.execute("INSERT OR ROLLBACK INTO keys SELECT * FROM keys")
    unsafe = "BEGIN SELECT * FROM pragma_table_info('keys'); END"
    execute(path, f"CREATE TRIGGER unsafe AFTER INSERT ON keys {unsafe}")
    with pytest.raises(KeyStoreError, match="is damaged"), open_store(path) as store:
        store.revoke("shop", CREATED)
    execute(path, "DELETE FROM store")  # no change would be noticed
    with pytest.raises(KeyStoreError, match="the key store is damaged; restore it"):
        read_whole(path)


def test_exhausted_descriptors_are_reported(path: Path) -> None:
    make_store(path, "shop")
    lowest = os.dup(0)
    os.close(lowest)
    reason = re.escape(f"{path}: the key store cannot be opened: Too many open files")
    with descriptors(lowest), pytest.raises(KeyStoreError, match=f"^{reason}$"):
        read_whole(path)


@pytest.mark.parametrize(
    "change",
    [
        "keys SET scopes = ''",
        "keys SET not_before = 'soon'",
        "keys SET expires = 'soon'",
        "keys SET revoked = 'soon'",
        "keys SET requests = x'00'",
        "keys SET misses = '1/year'",
        "tokens SET digest = x'00'",
        "tokens SET expires = 'soon'",
    ],
)
def test_row_that_this_service_would_not_have_written_is_reported(path: Path, change: str) -> None:
    """It is never taken for a key without that attribute."""
    make_store(path, "shop", "other")
    execute(path, f"UPDATE {change} WHERE id = 'shop'")
    reason = re.escape(f"{path}: a key in it is not valid: shop")
    with open_store(path) as store:
        with pytest.raises(KeyStoreError, match=f"^{reason}$"):
            list(store.records())
        with pytest.raises(KeyStoreError, match=f"^{reason}$"):
            store.api_keys(EMPTY)
        assert store.find("other").id == "other"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE keys SET created = 'x'",
        "UPDATE tokens SET created = 'x'",
        "INSERT INTO last_used VALUES ('shop', 'x')",
        "DELETE FROM tokens",
        "INSERT INTO tokens (digest, id, created) VALUES (x'ff', 'shop', 4e9)",
    ],
)
def test_wrong_value_is_reported_where_it_is_shown(path: Path, change: str) -> None:
    make_store(path, "shop")
    execute(path, change)
    with pytest.raises(KeyStoreError, match="a key in it is not valid: shop"):
        read(path)


def test_store_that_the_user_may_not_read_is_reported() -> None:
    with public_directory() as folder:
        path = folder / "keys.db"
        make_store(path, "shop")
        path.chmod(0)
        with unprivileged(), pytest.raises(KeyStoreError, match="needs permission"):
            read_whole(path)


def test_log_of_changes_is_bounded(path: Path) -> None:
    make_store(path)
    with closing(sqlite3.connect(path)) as connection:
        numbers = (
            "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10100) SELECT i FROM n"
        )
        add_tokens = f"INSERT INTO tokens SELECT randomblob(32), 'gone', 1.0, i FROM ({numbers})"
        connection.execute(add_tokens)
        assert connection.execute("SELECT count(*) FROM changes").fetchone() == (10_000,)


def test_change_whose_first_row_has_left_the_log_is_read(path: Path) -> None:
    """A token has become that of another key. The log has lost the row of this key."""
    make_store(path, "more")
    tokens = Token(digest("a"), CREATED), Token(digest("b"), CREATED)
    with open_store(path) as store:
        store.add([replace(record("shop", "a"), tokens=tokens)])
        before = store.api_keys(EMPTY)
    move = f"UPDATE tokens SET id = 'more' WHERE digest = x'{tokens[0].digest.hex()}'"
    execute(path, move, "DELETE FROM changes WHERE number < (SELECT max(number) FROM changes)")
    with open_store(path) as store:
        assert store.api_keys(before).keys == store.api_keys(EMPTY).keys


def test_keys_with_several_tokens_are_added_where_a_statement_takes_999_values(path: Path) -> None:
    make_store(path)
    tokens = [Token(digest(f"{n}"), CREATED) for n in range(1000)]
    keys = [replace(record(f"k{n}", "x"), tokens=(*tokens[n::500],)) for n in range(500)]
    with SqliteKeyStore(path).connected(busy_timeout=1.0, read_only=False) as database:
        names = ("busy_timeout", "cache_spill")
        assert [database.execute(f"PRAGMA {each}").fetchone() for each in names] == [(1000,), (0,)]
        locked = pytest.raises(KeyStoreError, match="locked")
        with database.reading(), locked, open_store(path, busy_timeout=0.0) as other:
            other.add(keys)
        database.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        store = KeyEditor(database, "keys.db")
        store.add(keys)
        store.add(keys, replaced=[each.id for each in keys])
    assert len(read(path)) == 500


def test_text_in_place_of_an_id_is_not_shown(path: Path) -> None:
    make_store(path, "shop")
    execute(path, *(f"UPDATE {each} SET id = 'idv_canary'" for each in ("keys", "tokens")))
    reason = re.escape(f"{path}: a key in it is not valid")
    with open_store(path) as store:
        for read_keys in (lambda: store.api_keys(EMPTY), lambda: list(store.records())):
            with pytest.raises(KeyStoreError, match=f"^{reason}$"):
                read_keys()

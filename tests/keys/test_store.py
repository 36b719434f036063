"""The key store: its file, its schema, and the changes of commands."""

from __future__ import annotations

import re
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Timer

import pytest
from msgspec.structs import replace

from support.key_stores import (
    CREATED,
    FAULTS,
    Fault,
    add,
    deleted,
    execute,
    failing,
    make_store,
    read,
    record,
)
from support.permissions import public_directory, unprivileged
from tornado_idv.errors import KeyStoreError
from tornado_idv.keys import store_file
from tornado_idv.keys.record import KeyRecord, Token
from tornado_idv.keys.store import KeyStore
from tornado_idv.keys.store_file import create
from tornado_idv.keys.token import digest, issue
from tornado_idv.units import Rate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_store_can_be_read_by_its_user_alone(path: Path) -> None:
    """Also the journal beside it while a change is written; afterwards there is none."""
    make_store(path, "shop")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE keys SET note = 'changed'")
        files = sorted(path.parent.iterdir())
        assert [each.name for each in files] == ["keys.db", "keys.db-journal"]
        assert {mode(each) for each in files} == {0o600}
        connection.commit()
        assert list(path.parent.iterdir()) == [path]


def test_store_renamed_over_another_is_not_changed_by_an_open_connection(path: Path) -> None:
    make_store(path, "shop")
    backup = path.with_name("backup.db")
    make_store(backup, "restored", "other")
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("SELECT count(*) FROM keys").fetchone()
        add(path, record("late", "late"))
        backup.rename(path)
        assert list(read(path)) == ["other", "restored"]
    assert list(read(path)) == ["other", "restored"]


def test_store_in_wal_mode_is_converted(path: Path) -> None:
    make_store(path, "shop")
    execute(path, "PRAGMA journal_mode = WAL")
    with KeyStore.opened(path, read_only=True) as store:
        assert store.find("shop").id == "shop"
    assert list(read(path)) == ["shop"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_store_in_wal_mode_that_is_in_use_is_reported(path: Path) -> None:
    """Its changes would be in another file, where no running service looks for them."""
    make_store(path, "shop")
    execute(path, "PRAGMA journal_mode = WAL")
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("SELECT count(*) FROM keys").fetchone()
        with pytest.raises(KeyStoreError, match="locked by another process"):
            read_whole(path)


def test_existing_store_is_not_created_again(path: Path) -> None:
    make_store(path, "shop")
    assert not create(path)
    assert list(read(path)) == ["shop"]


def test_store_in_a_missing_folder_cannot_be_created(path: Path) -> None:
    with pytest.raises(KeyStoreError, match=r"cannot be created: No such file or directory"):
        create(path.parent / "none" / "keys.db")


def test_every_attribute_is_stored(path: Path) -> None:
    create(path)
    whole = KeyRecord(
        "shop",
        CREATED,
        (Token(digest("a"), CREATED), Token(digest("b"), CREATED + 1, CREATED + 2)),
        owner="web shop",
        scopes=("identify:card", "admin"),
        not_before=CREATED + 0.5,
        expires=CREATED + 90,
        requests=Rate(100, 1),
        misses=Rate(300, 600),
        note="for ü",
        disabled=True,
        revoked=CREATED + 3,
    )
    plain = record("plain", issue("plain"))
    add(path, whole, plain)
    assert read(path) == {"shop": whole, "plain": plain}


def test_rotated_key_has_both_tokens_until_the_overlap_is_over(path: Path) -> None:
    make_store(path, "shop")
    token = Token(digest("new"), CREATED + 100)
    with KeyStore.opened(path) as store:
        store.rotate("shop", token, overlap=50.0, expires=None)
        old, new = store.find("shop").tokens
    assert (old.expires, new) == (CREATED + 150, token)


def test_rotating_never_makes_an_older_token_valid_for_longer(path: Path) -> None:
    create(path)
    add(path, record("shop", "a", expires=CREATED + 120))
    tokens = [Token(digest(name), CREATED + 100) for name in ("b", "c")]
    with KeyStore.opened(path) as store:
        store.rotate("shop", tokens[0], overlap=1e6, expires=CREATED + 1e9)
        store.rotate("shop", tokens[1], overlap=1e3, expires=None)
        shop = store.find("shop")
    expires = {token.digest: token.expires for token in shop.tokens}
    assert expires == {
        digest("a"): CREATED + 120,
        digest("b"): CREATED + 1100,
        digest("c"): None,
    }
    assert shop.expires == CREATED + 1e9


def test_expired_key_is_rotated_only_with_a_new_expiry(path: Path) -> None:
    create(path)
    add(path, record("shop", "a", expires=CREATED + 1))
    token = Token(digest("b"), CREATED + 2)
    with KeyStore.opened(path) as store:
        with pytest.raises(KeyStoreError, match="shop has expired; renew it with --expires"):
            store.rotate("shop", token, overlap=1.0, expires=None)
        store.rotate("shop", token, overlap=1.0, expires=CREATED + 3)
        assert store.find("shop").state(CREATED + 2) == "valid"
        assert store.find("shop").tokens[0].expires == CREATED + 1


def test_tokens_that_expired_long_ago_are_removed_at_the_next_rotation(path: Path) -> None:
    """And are there again if that is withdrawn; tokens of other keys stay."""
    make_store(path, "shop", "other")
    with KeyStore.opened(path) as store:
        for key_id in ("shop", "other"):
            store.rotate(key_id, Token(digest(f"{key_id} 1"), CREATED), overlap=10, expires=None)
        before = read(path)
        kept = Token(digest("2"), CREATED + 10 + 30 * 86400)
        store.rotate("shop", kept, overlap=10, expires=None)
        assert len(store.find("shop").tokens) == 3
        latest = Token(digest("3"), CREATED + 11 + 30 * 86400)
        rotated = store.rotate("shop", latest, overlap=10, expires=None)
        assert [each.digest for each in store.find("shop").tokens] == [
            digest("shop 1"),
            kept.digest,
            latest.digest,
        ]
        assert store.find("shop") == rotated[1]
        assert store.find("other") == before["other"]
        store.withdraw(latest.digest, *rotated)
        assert store.find("shop") == rotated[0]


@pytest.mark.parametrize("used", [[], ["shop"]], ids=["unused", "used meanwhile"])
def test_withdrawn_token_leaves_the_key_as_it_was(path: Path, used: list[str]) -> None:
    make_store(path, "shop")
    known = read(path)["shop"]
    with KeyStore.opened(path) as store:
        token = Token(digest("new"), CREATED + 100)
        before, after = store.rotate("shop", token, overlap=5.0, expires=CREATED + 1000)
        store.write_last_used(dict.fromkeys(used, CREATED))
        store.withdraw(token.digest, before, after)
    assert replace(read(path)["shop"], last_used=None) == known


def test_withdrawn_token_undoes_no_later_change(path: Path) -> None:
    make_store(path, "shop")
    with KeyStore.opened(path) as store:
        first, second = (Token(digest(name), CREATED + 9) for name in ("first", "second"))
        before, after = store.rotate("shop", first, overlap=100.0, expires=None)
        store.rotate("shop", second, overlap=0.0, expires=None)
        store.withdraw(first.digest, before, after)
        old, new = store.find("shop").tokens
    assert (old.expires, new) == (CREATED + 9, second)


def test_withdrawn_token_leaves_other_changes_and_the_old_expiry(path: Path) -> None:
    make_store(path, "shop")
    with KeyStore.opened(path) as store:
        token = Token(digest("new"), CREATED + 9)
        before, after = store.rotate("shop", token, overlap=100.0, expires=CREATED + 1000)
        store.set_disabled("shop", disabled=True)
        store.withdraw(token.digest, before, after)
        assert store.find("shop") == replace(before, disabled=True)


def test_key_that_is_added_while_it_is_looked_for_is_absent_or_whole(path: Path) -> None:
    make_store(path, "shop")

    def add_before(statement: str) -> None:
        if "LEFT JOIN" in statement:
            with suppress(KeyStoreError), KeyStore.opened(path, busy_timeout=0.01) as other:
                other.add([record("new", "new")])

    with KeyStore.opened(path) as store:
        store._connection.set_trace_callback(add_before)
        with pytest.raises(KeyStoreError, match="there is no key with this id"):
            store.find("new")


def test_withdrawn_first_token_leaves_no_key(path: Path) -> None:
    make_store(path, "shop")
    with KeyStore.opened(path) as store:
        shop = store.find("shop")
        store.withdraw(shop.tokens[0].digest, None, shop)
    assert read(path) == {}


def test_revoked_key_stays_revoked_and_listed(path: Path) -> None:
    make_store(path, "shop")
    with KeyStore.opened(path) as store:
        assert store.revoke("shop", CREATED + 1)
        assert not store.revoke("shop", CREATED + 2)
        assert store.find("shop").revoked == CREATED + 1
        with pytest.raises(KeyStoreError, match="shop was revoked, which is final"):
            store.set_disabled("shop", disabled=False)
        with pytest.raises(KeyStoreError, match="shop was revoked; issue a key with another id"):
            store.rotate("shop", Token(digest("x"), CREATED), overlap=1.0, expires=None)
        with pytest.raises(KeyStoreError, match="shop was revoked; its id is not used again"):
            store.add([record("shop", issue("shop"))])


def test_keys_are_added_all_or_none(path: Path) -> None:
    make_store(path, "shop")
    for wrong, message in [
        (record("shop", "x"), "the key shop exists already"),
        (record("other", "new"), "another key has the token of other"),
    ]:
        with KeyStore.opened(path) as store, pytest.raises(KeyStoreError, match=message):
            store.add([record("new", "new"), wrong])
    assert list(read(path)) == ["shop"]


def test_last_use_never_goes_back(path: Path) -> None:
    make_store(path, "shop", "partner")
    with KeyStore.opened(path) as store:
        store.write_last_used({"shop": 200.0, "unknown": 300.0})
        store.write_last_used({"shop": 100.0})
        assert [each.last_used for each in store.records()] == [None, 200.0]


def test_revision_differs_after_each_change_of_a_key_only(path: Path) -> None:
    """Also after one by SQL; the last use is no change."""
    make_store(path, "shop")
    with KeyStore.opened(path) as store:
        first = store.revision()
        store.write_last_used({"shop": 1.0})
        assert not store.set_disabled("shop", disabled=False)
        assert store.revision() == first
        assert store.set_disabled("shop", disabled=True)
        second = store.revision()
        execute(path, "UPDATE keys SET disabled = 0")
        assert len({first, second, store.revision()}) == 3


def test_change_waits_for_another_one(path: Path) -> None:
    make_store(path, "shop")
    with closing(sqlite3.connect(path, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        with (
            pytest.raises(KeyStoreError, match="locked by another process"),
            KeyStore.opened(path, busy_timeout=0.01) as store,
        ):
            store.revoke("shop", CREATED)
        Timer(0.1, other.rollback).start()
        with KeyStore.opened(path) as store:
            assert store.revoke("shop", CREATED)


def test_changes_at_once_wait_for_each_other(path: Path) -> None:
    """None fails, and none is lost, though each reads the key before it writes it."""
    make_store(path, "shop")

    def rotate(first: int) -> None:
        for i in range(first, first + 10):
            with KeyStore.opened(path) as store:
                token = Token(digest(str(i)), CREATED + i)
                store.rotate("shop", token, overlap=1e6, expires=None)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(rotate, range(0, 40, 10)))
    assert len(read(path)["shop"].tokens) == 41


def read_whole(path: Path) -> None:
    with KeyStore.opened(path, busy_timeout=0.01) as store:
        store.check_pages()
        list(store.records())


REASONS = {
    "deleted": (
        "there is no key store; restore it, or create the first one with "
        "tornado-idv keys issue ID --create"
    ),
    "emptied": "the file is empty; restore the key store from a backup",
    "truncated": "the key store is damaged; restore it from a backup",
    "garbage": "the file is not a key store",
    "garbage_page": "the key store is damaged; restore it from a backup",
    "another_database": "the file is not a key store but another SQLite database",
    "newer_schema": (
        "the key store was written by a newer tornado-idv (version 99 of its schema, this one "
        "knows 1); upgrade this one"
    ),
    "invalid_key": "a key in it is not valid",
    "directory": "the file is not a key store, not even a regular one",
    "fifo": "the file is not a key store, not even a regular one",
    "locked": "the key store is locked by another process",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_store_that_cannot_be_read_is_reported_in_a_sentence(path: Path, fault: Fault) -> None:
    make_store(path, "shop")
    reason = re.escape(f"{path}: {REASONS[fault.__name__]}")
    with failing(fault, path):
        with pytest.raises(KeyStoreError, match=f"^{reason}$"):
            read_whole(path)
        if fault is deleted:
            assert not path.exists()
    assert list(read(path)) == ["shop"]


def test_store_of_another_user_is_reported() -> None:
    with public_directory() as folder:
        make_store(folder / "keys.db", "shop")
        with (
            unprivileged(),
            pytest.raises(KeyStoreError, match="needs permission"),
            KeyStore.opened(folder / "keys.db"),
        ):
            pass


def test_older_schema_is_migrated_when_the_store_is_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(path, "shop")
    more = [*store_file._MIGRATIONS, "ALTER TABLE last_used ADD COLUMN client TEXT;"]
    monkeypatch.setattr(store_file, "_MIGRATIONS", more)
    with KeyStore.opened(path, read_only=True) as store:
        assert [each.id for each in store.records()] == ["shop"]
    with KeyStore.opened(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        connection.execute("SELECT client FROM last_used")


def test_failed_migration_leaves_the_store_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(path, "shop")
    wrong = "CREATE TABLE more (x);\nCREATE TABLE keys (x);"
    with monkeypatch.context() as patched:
        patched.setattr(store_file, "_MIGRATIONS", [*store_file._MIGRATIONS, wrong])
        with pytest.raises(KeyStoreError), KeyStore.opened(path):
            pass
    assert list(read(path)) == ["shop"]
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.OperationalError):
        connection.execute("SELECT * FROM more")


def test_repr_of_a_record_has_no_digest() -> None:
    assert digest("a").hex() not in repr(record("shop", "a"))
    assert repr(digest("a")) not in repr(record("shop", "a"))

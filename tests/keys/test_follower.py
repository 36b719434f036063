"""Changes of the key store become effective while it is followed, and faults of it do not."""

import gc
import logging
import os
import shutil
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import pytest

from idv_sqlite import idv_kinds, key_store
from idv_sqlite.key_store import SqliteKeyStore
from support.databases.key_stores import (
    CREATED,
    Fault,
    add,
    deleted,
    execute,
    garbage,
    locked,
    make_store,
    open_store,
    record,
)
from support.databases.key_stores import read as read_store
from tornado_idv.config.settings import AuthSettings
from tornado_idv.errors import InvalidKey
from tornado_idv.features.keys.editor import Token
from tornado_idv.keys import store
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing
from tornado_idv.keys.store import KeyStore, to_api_key
from tornado_idv.keys.token import digest
from tornado_idv.service import keys as module
from tornado_idv.service.keys import Keys, StoreFollower
from tornado_idv.units import Rate


class Followed:
    """A store that is followed, with the ring of its keys; ``now`` is the time of both clocks."""

    def __init__(self, path: Path, *key_ids: str) -> None:
        self.path = path
        self.now = CREATED
        self.tokens = make_store(path, *key_ids)
        self.follower = StoreFollower(SqliteKeyStore(path), lambda: self.now, lambda: self.now)
        self.ring = KeyRing([], lambda: self.now)
        self.follower.read()
        self.ring.replace(self.ring.merged(self.follower.snapshot.keys.values(), []))

    def poll(self) -> bool:
        """Poll 250 ms later; return whether the keys have changed."""
        self.now += 0.25
        before = self.follower.snapshot
        self.follower.poll()
        self.ring.replace(self.ring.merged(self.follower.snapshot.keys.values(), []))
        return self.follower.snapshot is not before

    def rejection(self, key_id: str) -> str | None:
        """Return why the token of a key is rejected, if it is."""
        try:
            self.ring.authenticate("bearer", self.tokens[key_id])
        except InvalidKey as error:
            return error.reason
        return None


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path / "keys.db", "shop", "partner")


@pytest.fixture
def rest(followed: Followed) -> bytes:
    """Revoke a key, but let the file be half of a copy, as by ``rsync --inplace``: the rest.

    What is read has the new revision, and the old keys.
    """
    before = followed.path.read_bytes()
    execute(followed.path, "UPDATE keys SET revoked = 0.0 WHERE id = 'shop'")
    after = followed.path.read_bytes()
    # The first page is the header, the second the table `store`, and the third the table `keys`.
    followed.path.write_bytes(after[:8192] + before[8192:])
    return after


def test_revoked_key_does_not_stay_valid_if_the_file_is_overwritten_during_a_read(
    followed: Followed, rest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_rows = key_store._Database.changed_rows  # noqa: SLF001 - another writer between two statements

    def overwrite_the_rest(*given: Any) -> Any:
        rows = changed_rows(*given)
        with followed.path.open("r+b") as file:
            file.write(rest)
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(key_store._Database, "changed_rows", overwrite_the_rest)  # noqa: SLF001 - another writer between two statements
        assert not followed.poll()
        assert "overwritten during a read" in str(followed.follower.error)
    assert followed.poll()
    assert followed.rejection("shop") == "revoked"
    assert followed.rejection("partner") is None


def test_revoked_key_does_not_stay_valid_after_a_read_of_half_a_copy(
    followed: Followed, rest: bytes
) -> None:
    assert followed.poll()
    followed.path.write_bytes(rest)
    os.utime(followed.path, (1, 1))  # the clock of a file system has steps of 4 ms
    followed.follower.write_last_used({"shop": CREATED})  # opens the copy first
    assert followed.poll()
    assert followed.rejection("shop") == "revoked"
    followed.follower.write_last_used({"partner": CREATED})
    assert not followed.poll()


def test_change_of_one_of_many_keys_leaves_the_others_as_they_are(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not converted again, and are held: limits know them by identity."""
    add(followed.path, *(record(f"k{i}", f"token-of-key-{i}") for i in range(100)))
    assert followed.poll()
    before = {each.id: each for each in followed.follower.snapshot.keys.values()}
    path, converted = followed.path, list[str]()

    def convert(row: Sequence[Any]) -> ApiKey:
        key = to_api_key(row)
        converted.append(key.id)
        if key.id == "late":  # the file is replaced or removed during the read
            path.unlink()
        elif key.id == "new":
            Path(shutil.copy(path, f"{path}.new")).replace(path)
        return key

    monkeypatch.setattr(store, "to_api_key", convert)
    add(followed.path, record("new", "token-of-new"))
    with open_store(followed.path) as opened:
        opened.revoke("partner", CREATED)
    assert followed.poll()
    add(followed.path, record("late", "late"))
    assert followed.poll()
    assert sorted(converted) == ["late", "new", "partner"]
    held = [key.id for key in before.values() if followed.ring.find(key.digest) is key]
    assert sorted(held) == sorted(before.keys() - {"partner"})


ADD_MANY_TOKENS = """
INSERT INTO tokens SELECT randomblob(32), 'gone', 1.0, NULL FROM
    (WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10100) SELECT i FROM n)
"""
TAKE_TOKEN = """
REPLACE INTO tokens SELECT digest, 'partner', 5.0, 6.0 FROM tokens
    WHERE id = 'shop' AND expires IS NOT NULL
"""
REPLACE_TOKEN = """
UPDATE OR REPLACE tokens SET digest = (SELECT digest FROM tokens WHERE expires IS NOT NULL)
    WHERE id = 'partner'; UPDATE tokens SET digest = zeroblob(32) WHERE id = 'partner'
"""
HAND_MADE_CHANGES: dict[str, tuple[str, ...]] = {
    "all deleted": ("DELETE FROM keys",),
    "renamed to that of a token without a key": ("UPDATE keys SET id = 'gone' WHERE id = 'shop'",),
    "token replaced by that of another key": (
        "UPDATE tokens SET id = 'partner', digest = zeroblob(32) WHERE expires IS NOT NULL",
    ),
    "replaced by insertion": (
        "INSERT OR REPLACE INTO tokens SELECT digest, 'shop', 5.0, 6.0 FROM tokens",
        "DELETE FROM keys WHERE id = 'partner'",
    ),
    "replaced by update": (REPLACE_TOKEN,),
    "replaced, and deleted at once": (
        TAKE_TOKEN,
        "DELETE FROM tokens WHERE id = 'partner' AND created = 5.0",
        "UPDATE keys SET owner = 'other' WHERE id = 'partner'",
    ),
    "id that is no text": (
        "INSERT INTO keys SELECT CAST(x'e4' AS TEXT), 1, '', '', 1, 1, '', '', '', 0, 1",
        "DELETE FROM keys WHERE id NOT IN ('shop', 'partner')",
        "UPDATE keys SET owner = 'other' WHERE id = 'shop'",
    ),
    "more than are logged": ("DELETE FROM tokens WHERE expires IS NOT NULL", ADD_MANY_TOKENS),
    "nothing": ("UPDATE store SET revision = 'other'",),
}


@pytest.mark.parametrize("change", HAND_MADE_CHANGES)
def test_keys_after_any_change_are_those_of_the_store(followed: Followed, change: str) -> None:
    """The result is that of reading all; what has not changed is held.

    Simple changes are in `tests/features/keys/test_store_changes.py`.
    """
    with open_store(followed.path) as opened:
        opened.rotate("shop", Token(digest("new"), CREATED + 1), overlap=60, expires=None)
    execute(followed.path, "INSERT INTO tokens VALUES (randomblob(32), 'gone', 1.0, NULL)")
    assert followed.poll()
    before = by_digest(followed.follower.snapshot.keys.values())
    execute(followed.path, *HAND_MADE_CHANGES[change])
    assert followed.poll()
    after = by_digest(followed.follower.snapshot.keys.values())
    assert after == stored_keys(followed.path)
    assert all(before[each] is key for each, key in after.items() if key == before.get(each))


def test_change_that_a_restored_backup_does_not_contain_is_undone(followed: Followed) -> None:
    backup = followed.path.read_bytes()
    execute(followed.path, "UPDATE keys SET disabled = 1 WHERE id = 'shop'")
    assert followed.poll()
    followed.path.write_bytes(backup)
    execute(followed.path, "UPDATE keys SET disabled = 1 WHERE id = 'partner'")
    assert followed.poll()
    assert by_digest(followed.follower.snapshot.keys.values()) == stored_keys(followed.path)
    assert followed.rejection("shop") is None


def by_digest(keys: Sequence[ApiKey]) -> dict[bytes, ApiKey]:
    return {key.digest: key for key in keys}


def stored_keys(path: Path) -> dict[bytes, ApiKey]:
    """Read all keys, as a service does when it starts."""
    follower = StoreFollower(SqliteKeyStore(path))
    follower.read()
    return by_digest(follower.snapshot.keys.values())


def test_key_without_a_token_leaves_all_keys_in_force(followed: Followed) -> None:
    """Whether it was damaged could not be determined."""
    execute(followed.path, "DELETE FROM tokens WHERE id = 'shop'")
    assert not followed.poll()
    assert followed.follower.error == f"{followed.path}: a key in the key store has no token"
    assert followed.rejection("shop") is None


def test_keys_of_the_store_are_not_garbage_collected(followed: Followed) -> None:
    """A collection of all of them would stop the event loop."""
    add(followed.path, *(record(f"k{i}", f"token-of-key-{i}") for i in range(1000)))
    gc.collect()
    before = len(gc.get_objects())
    assert followed.poll()
    gc.collect()
    assert len(gc.get_objects()) - before < 500


def test_store_at_rest_is_not_changed(followed: Followed) -> None:
    content = followed.path.read_bytes()
    for _ in range(100):
        assert not followed.poll()
    assert (followed.follower.error, followed.follower.since) == (None, CREATED)
    assert [each.name for each in followed.path.parent.iterdir()] == ["keys.db"]
    assert followed.path.read_bytes() == content


def test_other_servers_are_looked_for_each_10_s_and_once_the_store_can_be_read_again(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    monkeypatch.setattr(
        SqliteKeyStore, "require_one_server", lambda _, timeout: looks.append(timeout)
    )
    for expected in (1, 1, 2):
        followed.poll()
        assert looks == [0.5] * expected
        followed.now += 6
    with deleted(followed.path):
        followed.poll()
    followed.poll()
    followed.poll()
    assert len(looks) == 3


@pytest.mark.parametrize("fault", [deleted, garbage, locked])
def test_last_good_keys_stay_in_force_while_the_store_fails(
    followed: Followed,
    fault: Fault,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "_BUSY_TIMEOUT", 0.01)
    add(followed.path, record("short", "short", expires=CREATED + 2.0))
    followed.tokens["short"] = "short"
    assert followed.poll()
    with fault(followed.path):
        for _ in range(10):
            followed.poll()
            assert followed.rejection("shop") is None
            assert (followed.rejection("short") is None) is (followed.now < CREATED + 2.0)
        (line,) = caplog.records
        assert line.levelname == "ERROR"
        assert line.getMessage().startswith(f"{followed.path}: ")
        assert "the keys that were read before stay valid" in line.getMessage()
        failed = followed.follower
        assert failed.error is not None
        assert failed.error.startswith(f"{followed.path}: ")
        assert failed.since == CREATED + 0.5
        assert followed.path.exists() is (fault is not deleted)
    caplog.clear()
    followed.poll()
    recovered_at = followed.now
    followed.poll()
    assert [each.getMessage() for each in caplog.records] == [
        f"{followed.path}: the key store can be read again"
    ]
    assert followed.follower.error is None
    assert followed.follower.since == recovered_at
    with open_store(followed.path) as opened:
        opened.revoke("shop", CREATED)
    assert followed.poll()
    assert followed.rejection("shop") == "revoked"


def test_failure_to_write_the_last_use_is_logged_once_in_each_outage(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    """At the stop, it is logged that the use is not written later either."""
    with deleted(followed.path):
        for i in range(3):
            followed.follower.write_last_used({"shop": CREATED + i})
        followed.follower.close({"shop": CREATED})
        later, never = (each.getMessage() for each in caplog.records)
        assert later.endswith("; the last use of keys is written later")
        assert never.endswith("; the last use of keys is not written")
        assert not followed.path.exists()
    followed.follower.write_last_used({"shop": CREATED + 5, "configured": CREATED})
    assert read_store(followed.path)["shop"].last_used == CREATED + 5
    with deleted(followed.path):
        followed.follower.write_last_used({"shop": CREATED + 6})
    assert len(caplog.records) == 3


def test_nothing_is_written_while_the_store_cannot_be_read(
    followed: Followed, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it fails is logged once."""
    with deleted(followed.path):
        followed.poll()
        monkeypatch.setattr(SqliteKeyStore, "connected", None)
        followed.follower.write_last_used({"shop": CREATED})
        assert len(caplog.records) == 1
    monkeypatch.undo()
    followed.poll()
    followed.follower.write_last_used({"shop": CREATED})
    assert read_store(followed.path)["shop"].last_used == CREATED


def test_only_later_use_is_written(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    followed.follower.write_last_used({"shop": CREATED + 5})
    monkeypatch.setattr(KeyStore, "write_last_used", None)
    followed.follower.write_last_used({"shop": CREATED + 5, "configured": CREATED})
    followed.follower.write_last_used({"shop": CREATED + 4})
    monkeypatch.undo()
    assert read_store(followed.path)["shop"].last_used == CREATED + 5


def test_attributes_of_a_stored_key_reach_the_ring(followed: Followed) -> None:
    limits = {"requests": Rate(100, 1), "misses": Rate(300, 600)}
    add(followed.path, record("all", "all", owner="x", scopes=("admin", "identify:card"), **limits))
    assert followed.poll()
    assert followed.ring.authenticate("bearer", "all") == ApiKey(
        "all", digest("all"), "x", frozenset({"admin", "identify:card"}), **limits
    )


def test_keys_that_a_restore_makes_valid_again_are_logged(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    """As a failover does: an earlier state of the store; what commands change is not logged."""
    add(followed.path, record("off", "off", disabled=True), record("old", "old"))
    backup = followed.path.with_suffix(".bak")
    backup.write_bytes(followed.path.read_bytes())
    with open_store(followed.path) as store:
        store.revoke("shop", CREATED)
        store.revoke("off", CREATED)
        store.set_disabled("partner", disabled=True)
        store.rotate("old", Token(digest("new"), CREATED), overlap=60.0, expires=None)
    assert followed.poll()
    with open_store(followed.path) as store:
        store.set_disabled("partner", disabled=False)
        later = Token(digest("later"), CREATED + 1)
        store.rotate("partner", later, overlap=60.0, expires=CREATED + 1e6)
    execute(followed.path, *(f"DELETE FROM {t} WHERE id = 'shop'" for t in ("keys", "tokens")))
    assert followed.poll()
    assert caplog.messages == []
    backup.rename(followed.path)
    assert followed.poll()
    assert caplog.messages == [
        f"{followed.path}: a failover, a restore or an import has undone the revocation of the "
        f"key {key_id}, or delayed its expiry; revoke the key again unless this is intended"
        for key_id in ("off", "old", "partner", "shop")
    ]
    caplog.clear()
    with open_store(followed.path) as store:
        store.revoke("shop", CREATED)
    assert followed.poll()
    assert caplog.messages == []


async def test_reload_leaves_keys_undetermined_while_a_store_cannot_be_read(tmp_path: Path) -> None:
    make_store(tmp_path / "keys.db", "shop")
    keys, settings = Keys(idv_kinds()), AuthSettings.model_construct(store=tmp_path / "keys.db")
    (await keys.prepare(settings)).commit()
    assert time.monotonic() < keys.ring.complete_until <= time.monotonic() + 1
    keys.ring.complete_until = -inf
    (await keys.prepare(settings)).commit()
    assert keys.ring.complete_until == -inf
    await keys.close()

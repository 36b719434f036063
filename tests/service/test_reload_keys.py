"""Reload of keys: those of the file, and the key store, which is followed all the time."""

import asyncio
import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from idv_sqlite import idv_kinds
from idv_sqlite.key_store import SqliteKeyStore
from support.databases.key_stores import CREATED, add, make_store, read, record
from support.processes.reloads import A, B, config, reloadable
from support.processes.service import KEY
from tornado_idv.admin.report import FAILED, INVALID
from tornado_idv.config.settings import AuthSettings, KeySettings
from tornado_idv.errors import SettingError, StartError
from tornado_idv.keys.token import issue
from tornado_idv.service.keys import Keys, StoreFollower


def with_store(name: str, backend: str = B, key: str = KEY, key_id: str = "caller") -> str:
    text = config(backend, key=key).replace("id: caller", f"id: {key_id}")
    return text.replace("auth: {", f"auth: {{store: {name}, ")


async def poll(keys: Keys, store: StoreFollower | None = None) -> None:
    """Read the store now, which the service does four times a second."""
    await keys._poll(store or keys.store)  # noqa: SLF001 - a test does not wait


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


async def test_unchanged_store_is_not_read_again(tmp_path: Path, store: Path) -> None:
    """Also while it cannot be read: the last good keys stay in force."""
    token = make_store(store, "shop")["shop"]
    async with reloadable(tmp_path, with_store("keys.db")) as harness:
        follower = harness.service.keys.store
        store.write_bytes(b"no database" * 1000)
        other = issue("other")
        assert (await harness.reload(with_store("keys.db", key=other))).code is None
        assert harness.service.keys.store is follower
        assert (await harness.ask("@alice", key=token)).status == 200
        assert (await harness.ask("@alice", key=other)).status == 200
        # 503 if a second has passed: then the store is known to be unreadable.
        assert (await harness.ask("@alice", key=KEY)).status in {401, 503}


async def test_other_store_is_followed_instead(tmp_path: Path, store: Path) -> None:
    token = make_store(store, "shop")["shop"]
    other = make_store(tmp_path / "other.db", "web")["web"]
    async with reloadable(tmp_path, with_store("keys.db")) as harness:
        assert (await harness.ask("@alice", key=token)).status == 200
        assert (await harness.reload(with_store("other.db"))).code is None
        assert (await harness.ask("@alice", key=token)).status == 401
        assert (await harness.ask("@alice", key=other)).status == 200
        late = issue("late")
        add(tmp_path / "other.db", record("late", late))
        await poll(harness.service.keys)
        assert (await harness.ask("@alice", key=late)).status == 200
        assert (await harness.reload(config(B))).code is None
        assert (await harness.ask("@alice", key=other)).status == 401
        assert (await harness.ask("@alice")).status == 200


async def test_unknown_key_is_rejected_once_a_store_that_failed_is_removed(
    tmp_path: Path, store: Path
) -> None:
    """Until then it may have been issued meanwhile."""
    make_store(store, "shop")
    async with reloadable(tmp_path, with_store("keys.db")) as harness:
        keys = harness.service.keys
        assert keys.store is not None
        store.write_bytes(b"no database" * 1000)
        await poll(keys)
        store_before = keys.store
        assert (await harness.reload(with_store("keys.db", A))).code is None
        assert (await harness.ask("@alice", key=issue("other"))).status == 503
        assert (await harness.reload(config(B))).code is None
        await poll(keys, store_before)  # as a read that a reload did not wait for
        assert (await harness.ask("@alice", key=issue("other"))).status == 401


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [
        (with_store("absent.db"), FAILED, "there is no key store"),
        (with_store("keys.db", key_id="shop"), INVALID, ":3:32: auth.keys[0].id: the key store"),
    ],
    ids=["missing", "conflict"],
)
async def test_store_that_cannot_be_used_leaves_all_keys_in_force(
    tmp_path: Path, store: Path, text: str, code: str, problem: str
) -> None:
    token = make_store(store, "shop")["shop"]
    async with reloadable(tmp_path, with_store("keys.db")) as harness:
        result = await harness.reload(text)
        assert (result.code, problem in result.problems[0]) == (code, True)
        assert (await harness.ask("@alice", key=token)).status == 200
        assert (await harness.ask("@alice")).status == 200


async def test_store_is_closed_that_was_opened_beside_a_backend_that_cannot_be(
    tmp_path: Path, closed: list[str]
) -> None:
    async with reloadable(tmp_path, config(B)) as harness:
        failing = "{name: bad, kind: gated, opens: false}"
        assert (await harness.reload(with_store("second", failing))).code == FAILED
        assert closed == ["second"]


async def test_change_of_the_store_between_preparing_and_committing_is_effective(
    tmp_path: Path, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As is one that was read, and not merged yet, when the configured keys were replaced."""
    make_store(store, "shop")
    async with reloadable(tmp_path, with_store("keys.db")) as harness:
        service, late, later = harness.service, issue("late"), issue("later")
        keys = service.keys
        current = keys.store
        assert current is not None
        prepared = await service.prepare(service.settings)
        add(store, record("late", late))
        await poll(keys, current)
        prepared.commit()
        assert (await harness.ask("@alice", key=late)).status == 200
        add(store, record("later", later), record("caller", issue("caller")))
        current.poll()
        with caplog.at_level(logging.ERROR):
            await poll(keys, current)
        assert (await harness.ask("@alice", key=later)).status == 200
        assert (await harness.ask("@alice")).status == 200
        assert f"the key store {store} has a key caller, too" in caplog.text
        assert {*keys._last_used()} == {"late", "later"}, "only the configured caller was used"  # noqa: SLF001 - what the next write has


async def test_change_of_the_store_brings_no_key_back_that_a_reload_has_removed(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread merged the change with the keys of the file from before the reload."""
    make_store(store, "shop")
    async with reloadable(tmp_path, with_store("keys.db")) as harness:
        keys, late, new = harness.service.keys, issue("late"), issue("caller")
        current, merge, merged = keys.store, keys._merge, threading.Event()  # noqa: SLF001 - what the next write has
        assert current is not None
        harness.path.write_text(with_store("keys.db", key=new))
        prepared = await harness.service.prepare(harness.load())
        loop = asyncio.get_running_loop()

        async def commit() -> None:
            prepared.commit()

        def merge_before(*arguments: Any) -> Any:
            result = merge(*arguments)
            if not merged.is_set():
                merged.set()
                asyncio.run_coroutine_threadsafe(commit(), loop).result(10)
            return result

        monkeypatch.setattr(keys, "_merge", merge_before)  # a reload during the merge
        add(store, record("late", late))
        await poll(keys, current)
        assert merged.is_set()
        assert (await harness.ask("@alice", key=KEY)).status == 401
        assert (await harness.ask("@alice", key=new)).status == 200
        assert (await harness.ask("@alice", key=late)).status == 200


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stores that were closed, of two with a key of their name."""
    for name in ("first", "second"):
        make_store(tmp_path / name, name)
    names: list[str] = []
    monkeypatch.setattr(SqliteKeyStore, "close", lambda each: names.append(Path(each.name).name))
    return names


def with_keys(store: Path | None, *configured: KeySettings) -> AuthSettings:
    return AuthSettings.model_construct(keys=configured, store=store)


async def test_store_is_closed_that_was_opened_for_an_aborted_configuration(
    tmp_path: Path, closed: list[str]
) -> None:
    """Or that has a configured key."""
    keys = Keys(idv_kinds())
    (await keys.prepare(with_keys(tmp_path / "first"))).commit()
    for store in (tmp_path / "first", None):
        await (await keys.prepare(with_keys(store))).abort()
    assert closed == []
    await (await keys.prepare(with_keys(tmp_path / "second"))).abort()
    assert (closed, keys.ring.ids) == (["second"], {"first"})
    second = KeySettings.model_validate({"id": "second", "sha256": "0" * 64})
    with pytest.raises(SettingError, match="has a key second, too; remove this one"):
        await keys.prepare(with_keys(tmp_path / "second", second))
    assert closed == ["second"] * 2
    await keys.close()
    assert closed == ["second", "second", "first"]


@pytest.mark.parametrize("other", ["second", None])
async def test_store_that_is_replaced_or_closed_gets_the_last_uses(
    tmp_path: Path, closed: list[str], other: str | None
) -> None:
    with suppress(StartError):
        async with Keys(idv_kinds()).opened(with_keys(tmp_path / "first")) as keys:
            keys.ring.last_used["first"] = CREATED + 7
            for name in ("first", other):
                (await keys.prepare(with_keys(tmp_path / name if name else None))).commit()
            keys.ring.last_used["second"] = CREATED + 8
            raise StartError
    assert sorted(closed) == ["first", *filter(None, [other])]
    assert read(tmp_path / "first")["first"].last_used == CREATED + 7
    assert read(tmp_path / "second")["second"].last_used == (other and CREATED + 8)

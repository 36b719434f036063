"""The SQLite backend while its file is written, locked, replaced, damaged or slow."""

import asyncio
import gc
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tornado.ioloop import IOLoop

from idv_sqlite.backend import SqliteBackend
from idv_sqlite.openfile import OpenFile
from support.databases.sqlite_databases import (
    ALICE,
    BOB,
    USERS,
    Served,
    insert,
    levels,
    run,
    serving,
    serving_in,
    write,
)
from tornado_idv import BackendResult, Broken, ByCard, ByNickname, LookupFailed, Unavailable, User
from tornado_idv.kit.testing import make_backend

pytestmark = pytest.mark.slow

KNOWN = ByNickname("alice")
ABSENT = ByNickname("nobody")


def file_of(backend: SqliteBackend) -> Any:
    """Return the open file, in which faults strike, or ``None``."""
    return backend._file  # noqa: SLF001 - its replacement shows only in later answers


def overwrite(path: Path, content: bytes) -> None:
    """Write the content into the same file."""
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(content)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database that knows alice alone, and was written a while ago."""
    path = write(tmp_path / "users.db", ALICE)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


@pytest.fixture
def backend(path: Path, io_loop: IOLoop) -> Iterator[Served]:
    with serving_in(io_loop, path) as backend:
        yield backend


async def test_written_rows_are_found_and_reported_as_a_change(path: Path, backend: Served) -> None:
    assert await backend.find(ByNickname("bob")) is None
    await backend.check()
    assert backend.changes == []
    insert(path, BOB)
    assert await backend.find(ByNickname("bob")) == BOB
    await backend.check()
    await backend.check()
    assert backend.changes == ["changed"]
    file_of(backend).is_unmodified = lambda: False  # it is written all the time
    assert await asyncio.wait_for(backend.find(ABSENT), timeout=60) is None


async def test_a_look_under_way_is_not_believed_of_what_came_after_it(
    path: Path, backend: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had seen the file as it was before the copy, and SQLite still holds the old pages."""
    assert await backend.find(KNOWN) == ALICE
    assert await backend.find(ByNickname("bob")) is None
    held, doubted = Held(file_of(backend).check), asyncio.Event()
    is_unmodified = file_of(backend).is_unmodified
    monkeypatch.setattr(file_of(backend), "check", held)
    monkeypatch.setattr(file_of(backend), "is_unmodified", lambda: doubted.set() or is_unmodified())
    looking = asyncio.create_task(backend.check())
    await held.has_result.wait()
    overwrite(path, write(tmp_path / "other.db", BOB).read_bytes())
    asking = asyncio.create_task(backend.find(ByNickname("bob")))
    await doubted.wait()
    held.let_go.set()
    await looking
    assert await asking == BOB


async def test_rows_written_in_wal_mode_are_reported_as_a_change(path: Path) -> None:
    """There the file itself does not change until a checkpoint."""
    run(path, "PRAGMA journal_mode = WAL")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        async with serving(path) as backend:
            before = path.stat()
            writer.execute("INSERT INTO users VALUES ('bob', '0012345670', 'Pro', NULL)")
            assert path.stat().st_mtime_ns == before.st_mtime_ns
            await backend.check()
            assert backend.changes == ["changed"]
            assert await backend.find(ByCard("0012345670")) is not None
            writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            await backend.check()
            assert await backend.find(KNOWN) == ALICE
            assert await backend.find(ABSENT) is None


async def test_a_locked_database_is_unavailable_for_every_caller_at_once(path: Path) -> None:
    """The last of many waits no longer than the first, and a look learns nothing."""
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        async with serving(path) as backend:
            writer.execute("BEGIN EXCLUSIVE")
            asked = [backend.find(query) for query in [KNOWN, ABSENT] * 200]
            async with asyncio.timeout(50):  # one after the other they take 100 s
                outcomes = await asyncio.gather(*asked, return_exceptions=True)
            expected = {(Unavailable, "the database is locked")}
            assert {(type(each), str(each)) for each in outcomes} == expected
            await backend.check()
            writer.execute("COMMIT")
            assert await backend.find(KNOWN) == ALICE
            writer.execute("BEGIN EXCLUSIVE")  # a short lock is waited for
            asyncio.get_running_loop().call_later(0.03, writer.execute, "COMMIT")
            assert await backend.find(KNOWN) == ALICE


async def test_a_copy_over_the_file_is_never_answered_from_old_pages(
    path: Path, backend: Served
) -> None:
    """Both files have one size and one change counter, so SQLite sees no difference."""
    other = write(path.with_name("other.db"), BOB).read_bytes()
    assert other[24:40] == path.read_bytes()[24:40]
    assert await backend.find(KNOWN) == ALICE
    assert await backend.find(ByNickname("bob")) is None
    overwrite(path, other)
    assert await backend.find(KNOWN) is None
    assert await backend.find(ByNickname("bob")) == BOB
    assert backend.changes == ["changed"]


async def test_a_copy_with_the_same_schema_version(path: Path, backend: Served) -> None:
    """SQLite compares only the version, and would take one column for the other."""
    other = path.with_name("other.db")
    run(other, "CREATE TABLE users (card_number TEXT UNIQUE, nickname TEXT PRIMARY KEY, plan TEXT)")
    for nickname in ("alice", "bob"):
        run(other, f"INSERT INTO users VALUES ('{len(nickname)}', '{nickname}', 'Pro')")
    assert await backend.find(KNOWN) == ALICE
    overwrite(path, other.read_bytes())
    assert await backend.find(ByNickname("bob")) == User("Pro", "3", "bob")


async def test_a_restored_backup_that_is_written_later(path: Path) -> None:
    """A lost write and a later one lead to the same change counter."""
    backup = path.read_bytes()
    insert(path, User("Free", "1", "carol"))
    async with serving(path) as backend:
        assert await backend.find(ByNickname("bob")) is None
        overwrite(path, backup)
        await backend.check()
        insert(path, BOB)
        assert await backend.find(ByNickname("bob")) == BOB


@pytest.mark.parametrize("ends", ["before the check", "during the check", "after the statement"])
async def test_a_lookup_during_a_copy(
    path: Path, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are new, and the indexes old. They lead from each user to the other one's row."""
    insert(path, BOB)
    insert(write(other := path.with_name("other.db"), BOB), ALICE)
    run(other, "UPDATE users SET plan = 'Plus'")
    content = other.read_bytes()
    read = OpenFile._read_state  # noqa: SLF001 - a check reads the state twice
    async with serving(path) as backend:
        with path.open("r+b", buffering=0) as file:
            file.write(content[:8192])
            check, find = backend.check, file_of(backend).find

            async def finish_and_check() -> None:
                file.write(content[file.tell() :])
                await check()

            async def find_and_finish(*args: Any) -> User | None:
                return [await find(*args), await finish_and_check()][0]

            async def read_and_finish(self: OpenFile) -> Any:
                state = await read(self)
                await asyncio.sleep(0.02)  # the file gets another time
                file.write(content[file.tell() :])
                return state

            if ends == "during the check":
                monkeypatch.setattr(OpenFile, "_read_state", read_and_finish)
                with pytest.raises(Unavailable, match="overwrites the file"):
                    await backend.find(KNOWN)
                return
            if ends == "before the check":
                backend.check = finish_and_check
            else:
                file_of(backend).find = find_and_finish
            assert await backend.find(KNOWN) == User("Plus", ALICE.card_number, "alice")


async def test_a_table_that_gets_a_column_is_read_with_it(path: Path) -> None:
    path.unlink()
    run(path, USERS.replace("profile_url", "homepage"))
    insert(path, BOB)
    async with serving(path) as backend:
        assert (await backend.find(ByNickname("bob"))).profile_url is None
        run(path, "ALTER TABLE users RENAME COLUMN homepage TO profile_url")
        await backend.check()
        assert await backend.find(ByNickname("bob")) == BOB


IN_PLACE = {
    "zero-length": (lambda good: b"", Unavailable),
    "garbage": (lambda good: b"no database" * 1000, Broken),
    "truncated within a page": (lambda good: good[:-100], Broken),
    "pages of noise": (lambda good: good[:4096] + b"\xff" * (len(good) - 4096), Broken),
}


@pytest.mark.parametrize(("damage", "error"), list(IN_PLACE.values()), ids=list(IN_PLACE))
async def test_a_file_damaged_in_place_is_never_not_known(
    path: Path,
    backend: Served,
    *,
    damage: Callable[[bytes], bytes],
    error: type[LookupFailed],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Before the look and after it; it is logged once, and recovers."""
    good, raised = path.read_bytes(), []
    overwrite(path, damage(good))
    with pytest.raises(LookupFailed):
        await backend.find(ABSENT)
    for _ in range(3):
        await backend.check()
        for query in (KNOWN, ABSENT, ByCard("4000123412341234")):
            with pytest.raises(error) as caught:
                await backend.find(query)
            raised.append(caught.value)
    assert len({*map(id, raised)}) == 9  # a caller may change its own
    assert len(levels(caplog, logging.ERROR)) == 1
    overwrite(path, good)
    await backend.check()
    assert await backend.find(KNOWN) == ALICE
    assert await backend.find(ABSENT) is None
    assert backend.changes == ["changed"]


ASIDE: dict[str, tuple[Callable[[Path], object], str]] = {
    "deleted": (lambda path: None, "no such file"),
    "garbage": (lambda path: path.write_bytes(b"no database" * 1000), "not a database"),
    "with @": (
        lambda path: write(path, User("Free", "1", "@alice")),
        'repairs them: UPDATE "users" SET "nickname" = ',
    ),
}


@pytest.mark.parametrize(("replace", "reason"), ASIDE.values(), ids=ASIDE)
async def test_a_file_set_aside_answers_what_it_knows_and_is_not_sure_of_the_rest(
    path: Path,
    backend: Served,
    *,
    replace: Callable[[Path], object],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its pages are intact behind the open connections; it is logged once, and recovers."""
    revision = backend.revision
    path.rename(path.with_name("aside.db"))
    replace(path)
    for _ in range(3):
        with pytest.raises(LookupFailed, match=reason):
            await backend.find(ABSENT)
        assert await backend.find(KNOWN) == ALICE
        await backend.check()
        assert backend.revision == revision
    assert len(levels(caplog, logging.ERROR)) == 1
    path.with_name("aside.db").replace(path)
    await backend.check()
    assert await backend.find(ABSENT) is None
    assert backend.changes == ["changed"]  # to rename a file changes its status time
    assert backend.revision not in (revision, None)


async def test_each_new_reason_is_logged(
    path: Path, backend: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for replace, reason in (ASIDE["deleted"], ASIDE["garbage"]):
        path.unlink(missing_ok=True)
        replace(path)
        caplog.clear()
        await backend.check()
        (logged,) = caplog.messages
        assert [reason in text for text in (logged, str(backend.problem))] == [True, True]


@pytest.mark.parametrize(
    "script",
    ["DROP TABLE users", "ALTER TABLE users RENAME COLUMN nickname TO nick"],
    ids=["table", "column"],
)
async def test_a_table_or_column_that_goes_is_unavailable(
    path: Path, backend: Served, script: str
) -> None:
    """A quoted name of no column would be a text to SQLite, and no user would be found."""
    run(path, script)
    for query in (KNOWN, ABSENT):
        with pytest.raises(Unavailable, match="is gone"):
            await backend.find(query)
    await backend.check()
    for query in (KNOWN, ABSENT):
        with pytest.raises(Unavailable, match="users"):
            await backend.find(query)


async def test_a_failed_check_is_not_the_last(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = make_backend(SqliteBackend, path.parent, path=path.name)
    reported: asyncio.Queue[str] = asyncio.Queue()

    def listener() -> None:
        reported.put_nowait("changed")
        raise RuntimeError("the listener's own fault")

    backend.on_change(listener)
    backend.check_interval = 0.01
    await backend.open()
    try:
        insert(path, BOB)
        await asyncio.wait_for(reported.get(), timeout=5)
        run(path, "DELETE FROM users")
        await asyncio.wait_for(reported.get(), timeout=5)
    finally:
        await backend.close()
    assert "checking the file failed" in caplog.text


async def test_close_takes_the_error_of_check(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise asyncio logs the error as never retrieved."""
    async with serving(path) as backend:
        backend.on_change(lambda: {}["the listener's own fault"])
        insert(path, BOB)
        leaving = asyncio.create_task(backend.check())
        for _ in range(2):  # until the check has begun
            await asyncio.sleep(0)
        leaving.cancel()
    del backend
    gc.collect()
    assert caplog.text == ""


async def test_a_lookup_that_comes_after_the_close_is_unavailable(
    path: Path, backend: Served
) -> None:
    """As one that waits for a lock may, when the file is replaced meanwhile."""
    files = [file_of(backend)]
    write(path.with_name("new.db"), BOB).replace(path)
    await backend.check()
    files.append(file_of(backend))
    await backend.close()
    for file in files:
        with pytest.raises(Unavailable, match="the connection is closed"):
            await file.find(KNOWN)


async def test_a_caller_that_leaves_does_not_end_the_run_check(path: Path, backend: Served) -> None:
    insert(path, BOB)
    leaving = asyncio.create_task(backend.check())
    await asyncio.sleep(0)
    leaving.cancel()
    await backend.check()
    assert backend.changes == ["changed"]


class Held:
    """Holds a coroutine function's result back until it is let go."""

    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self._function = function
        self.has_result = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, *args: Any) -> Any:
        result = await self._function(*args)
        self.has_result.set()
        await asyncio.wait_for(self.let_go.wait(), timeout=30)  # a failed test never lets go
        return result


async def test_no_file_is_opened_after_close(
    path: Path, backend: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees that the file was written, and nothing would close what it opened."""
    held = Held(file_of(backend).find)
    monkeypatch.setattr(file_of(backend), "find", held)
    asked = asyncio.create_task(backend.find(ABSENT))
    await asyncio.wait_for(held.has_result.wait(), timeout=5)
    write(path.with_name("new.db"), BOB).replace(path)
    await backend.close()
    held.let_go.set()
    with pytest.raises(Unavailable, match="the backend is closed"):
        await asyncio.wait_for(asked, timeout=5)
    assert file_of(backend) is None


async def test_users_are_found_during_a_check(
    path: Path, backend: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not cached. All other lookups wait: these users may be in the new file."""
    held = Held(OpenFile.open)
    monkeypatch.setattr(OpenFile, "open", held)
    write(path.with_name("new.db"), BOB).replace(path)
    found = BackendResult(ALICE, storable=False)
    assert await asyncio.wait_for(backend.find(KNOWN), timeout=5) == found
    await asyncio.wait_for(held.has_result.wait(), timeout=5)  # that lookup began the check
    asked = [asyncio.create_task(backend.find(query)) for query in (ByNickname("bob"), ABSENT)]
    by_card = backend.find(ByCard(ALICE.card_number))
    assert await asyncio.wait_for(by_card, timeout=5) == found
    assert not any(each.done() for each in asked)
    assert backend.changes == []
    slow = Held(file_of(backend).find)
    monkeypatch.setattr(file_of(backend), "find", slow)
    late = asyncio.create_task(backend.find(KNOWN))
    await asyncio.wait_for(slow.has_result.wait(), timeout=5)
    held.let_go.set()
    assert await asyncio.wait_for(asyncio.gather(*asked), timeout=5) == [BOB, None]
    assert backend.changes == ["changed"]
    slow.let_go.set()
    assert [await late, await backend.find(KNOWN)] == [None, None]


async def test_closing_waits_for_the_check(
    path: Path, backend: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it opened is closed, and a lookup that waits for it gets no answer from either file."""
    held = Held(OpenFile.open)
    monkeypatch.setattr(OpenFile, "open", held)
    write(path.with_name("new.db"), BOB).replace(path)
    asked = asyncio.create_task(backend.find(ABSENT))
    await asyncio.wait_for(held.has_result.wait(), timeout=5)
    closing_it = asyncio.create_task(backend.close())
    closed, _ = await asyncio.wait([closing_it], timeout=0.1)
    held.let_go.set()
    await asyncio.wait_for(closing_it, timeout=5)
    assert not closed
    assert file_of(backend) is None
    with pytest.raises(Unavailable, match="closed"):
        await asyncio.wait_for(asked, timeout=5)


async def test_look_that_was_asked_for_before_the_close_does_not_begin_after_it(
    path: Path, backend: Served
) -> None:
    write(path.with_name("new.db"), BOB).replace(path)
    looking = asyncio.create_task(backend.check())
    await asyncio.sleep(0)
    await backend.close()
    for check in (looking, backend.check()):
        with pytest.raises(Unavailable, match="closed"):
            await asyncio.wait_for(check, timeout=5)
    assert file_of(backend) is None

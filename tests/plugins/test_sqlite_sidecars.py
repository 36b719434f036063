"""The SQLite backend when an index lacks rows, and when ``-wal`` and ``-shm`` are not its own."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from idv_sqlite.table import quoted
from support.databases.sqlite_databases import ALICE, BOB, insert, run, serving, start_error, write
from support.databases.user_lists import cells, insert_statement
from tornado_idv import Broken, ByCard, ByNickname, Unavailable

ABSENT = ByNickname("absent")
PARTIAL = "WHERE card_number IS NOT NULL"
UNINDEXED = """
    PRAGMA writable_schema = ON;
    CREATE TABLE saved AS SELECT * FROM sqlite_master WHERE name = 'cards';
    DELETE FROM sqlite_master WHERE name = 'cards';
"""
"""What comes after it, over a new connection, is written past the index."""
INDEXED_AGAIN = """
    PRAGMA writable_schema = ON;
    INSERT INTO sqlite_master SELECT * FROM saved;
    DROP TABLE saved;
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table whose only index, of cards, can be made to miss rows."""
    path = tmp_path / "users.db"
    run(path, "CREATE TABLE users (nickname TEXT, card_number TEXT, plan TEXT, profile_url TEXT)")
    run(path, "CREATE INDEX cards ON users (card_number)")
    insert(path, ALICE)
    run(path, UNINDEXED)
    return path


@pytest.mark.parametrize(
    ("statement", "checked_size"),
    [
        (insert_statement(cells(BOB)), 64_000),
        ("UPDATE users SET card_number = '0012345670';", 64_000),
        (insert_statement(cells(BOB)), 0),
        (f"{insert_statement(cells(BOB))} UPDATE saved SET sql = sql || ' {PARTIAL}';", 64_000),
    ],
    ids=["insert", "update", "insert, counted in a large file", "partial index"],
)
@pytest.mark.parametrize("table", ["Users", "people"])
async def test_a_row_that_index_lacks_stops_start(
    path: Path, statement: str, checked_size: int, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idv_sqlite.openfile.CHECKED_SIZE", checked_size)
    run(path, statement + INDEXED_AGAIN)
    others = f"CREATE INDEX part ON users (plan) {PARTIAL}; CREATE INDEX plans ON users (plan);"
    run(path, f"{others} CREATE VIEW people AS SELECT * FROM users")
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT * FROM users INDEXED BY cards WHERE card_number = '0012345670'"
        assert connection.execute(query).fetchall() == []
    assert "an index lacks rows of its table; repair it" in await start_error(path, table=table)
    run(path, "REINDEX")
    async with serving(path, table=table) as backend:
        assert await backend.find(ByCard("0012345670")) is not None


async def test_a_row_written_past_an_index_is_seen_as_it_comes(path: Path) -> None:
    run(path, INDEXED_AGAIN)
    async with serving(path) as backend:
        assert await backend.find(ByCard("0012345670")) is None
        run(path, UNINDEXED)
        insert(path, BOB)
        run(path, INDEXED_AGAIN)
        with pytest.raises(Broken, match="an index lacks rows"):
            await backend.find(ByCard("0012345670"))
        run(path, "REINDEX")
        await backend.check()
        assert await backend.find(ByCard("0012345670")) == BOB


async def test_indexes_are_compared_after_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema stays the same, and the writer knows it without the index."""
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as writer,
        closing(sqlite3.connect(path, isolation_level=None)) as locker,
    ):
        writer.execute("SELECT * FROM users").fetchall()
        run(path, "PRAGMA writable_schema = ON; INSERT INTO sqlite_master SELECT * FROM saved")
        async with serving(path) as backend:

            def lock(name: str) -> str:
                if not locker.in_transaction:
                    locker.execute("BEGIN EXCLUSIVE")
                return quoted(name)

            writer.execute("INSERT INTO users VALUES ('bob', '0012345670', 'Free', NULL)")
            with monkeypatch.context() as patched:
                patched.setattr("idv_sqlite.table.quoted", lock)  # once the indexes are known
                await backend.check()
            locker.execute("ROLLBACK")
            with pytest.raises(Broken, match="an index lacks rows"):
                await backend.find(ByCard("0012345670"))


async def test_an_index_of_an_unknown_function_is_not_compared(tmp_path: Path) -> None:
    """No lookup uses it."""
    path = write(tmp_path / "users.db", ALICE)
    with closing(sqlite3.connect(path)) as connection:
        connection.create_function("sounds", 1, str.upper, deterministic=True)
        connection.execute("CREATE INDEX sounding ON users (sounds(nickname))")
    async with serving(path) as backend:
        assert await backend.find(ByNickname("alice")) == ALICE


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[tuple[Path, sqlite3.Connection]]:
    """A file in WAL mode, and a writer that has not yet copied alice into it."""
    path = write(tmp_path / "users.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        insert(path, ALICE)
        yield path, writer


def insert_bob(path: Path) -> None:
    """Write in another process: within one, SQLite shares what it has opened."""
    code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1])"
    code += "; c.execute(sys.argv[2]); c.commit()"
    command = [sys.executable, "-c", code, path, insert_statement(cells(BOB))]
    subprocess.run(command, check=True)


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


@pytest.mark.slow
@pytest.mark.parametrize("suffixes", [["-wal"], ["-shm"], ["-wal", "-shm"]], ids="+".join)
async def test_removed_wal_file(wal: tuple[Path, sqlite3.Connection], suffixes: list[str]) -> None:
    path, writer = wal
    link = path.with_name("link.db")
    link.symlink_to(path)
    async with serving(link) as backend:
        writer.close()
        for suffix in suffixes:
            beside(path, suffix).unlink()
        assert await backend.find(ByNickname("alice")) == ALICE
        for _ in range(2):
            with pytest.raises(Unavailable, match="-wal or -shm file was removed or replaced"):
                await backend.find(ABSENT)
            await backend.check()
        # A writer that comes later has other files, which the service does not read.
        insert_bob(path)
        with pytest.raises(Unavailable):
            await backend.find(ByNickname("bob"))
        os.utime(path)
        await backend.check()
        assert await backend.find(ByNickname("bob")) == BOB
        beside(path, "-wal").unlink()
        await backend.check()
        os.utime(path)
        assert await backend.find(ABSENT) is None


async def test_a_wal_file_that_comes_back_ends_the_doubt(
    wal: tuple[Path, sqlite3.Connection],
) -> None:
    path, _ = wal
    async with serving(path) as backend:
        away = beside(path, "-wal").rename(path.with_name("away"))
        with pytest.raises(Unavailable):
            await backend.find(ABSENT)
        away.rename(beside(path, "-wal"))
        await backend.check()
        assert await backend.find(ABSENT) is None


async def test_a_file_that_is_replaced_beside_its_wal_file_is_not_opened(
    wal: tuple[Path, sqlite3.Connection], tmp_path: Path
) -> None:
    """SQLite applies the old file's pages to the new one, and finds the old users."""
    path, _ = wal
    (link := tmp_path / "link.db").symlink_to(path)
    async with serving(link) as backend:
        write(tmp_path / "new.db", BOB).replace(path)
        await backend.check()
        assert await backend.find(ByNickname("alice")) == ALICE
        for gone in ("-wal", "-shm"):
            with pytest.raises(Unavailable, match="remove both"):
                await backend.find(ByNickname("bob"))
            beside(path, gone).unlink()
            await backend.check()
        assert await backend.find(ByNickname("bob")) == BOB
        assert await backend.find(ByNickname("alice")) is None


async def test_a_link_that_leads_to_another_file_in_wal_mode_is_followed(
    wal: tuple[Path, sqlite3.Connection], tmp_path: Path
) -> None:
    path, _ = wal
    link = tmp_path / "link.db"
    link.symlink_to(path)
    other = write(tmp_path / "other.db", BOB)
    with closing(sqlite3.connect(other)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        async with serving(link) as backend:
            assert await backend.find(ByNickname("alice")) == ALICE
            (tmp_path / "next").symlink_to(other)
            (tmp_path / "next").replace(link)
            assert await backend.find(ByNickname("bob")) == BOB
            assert await backend.find(ByNickname("alice")) is None


async def test_a_link_that_changes_during_a_check_is_followed(tmp_path: Path) -> None:
    (link := tmp_path / "link.db").symlink_to(path := write(tmp_path / "users.db", ALICE))
    (tmp_path / "next").symlink_to(write(tmp_path / "other.db", BOB))
    async with serving(link) as backend:
        with closing(sqlite3.connect(path)) as writer:
            writer.executescript("BEGIN EXCLUSIVE; UPDATE users SET plan = 'Plus'")
            check = asyncio.create_task(backend.check())
            await asyncio.sleep(0.05)  # the check waits for the lock
            (tmp_path / "next").replace(link)
            path.unlink()
            writer.commit()
        await check
        assert backend.problem is None
        assert await backend.find(ByNickname("bob")) == BOB


async def test_a_file_changed_to_wal_mode_is_served_on(tmp_path: Path) -> None:
    path = write(tmp_path / "users.db", ALICE)
    async with serving(path) as backend:
        run(path, "PRAGMA journal_mode = WAL")
        insert(path, BOB)
        assert await backend.find(ByNickname("bob")) == BOB
        await backend.check()
        assert await backend.find(ABSENT) is None

"""The SQLite backend when many ask at once, and leave: several lookups go in one statement."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import aiosqlite
import pytest
from tornado.ioloop import IOLoop

from support.databases.sqlite_databases import ALICE, Served, run, serving, serving_in, write
from tornado_idv import Broken, ByCard, ByNickname, Query, Unavailable, User

CROWD = [User("Free", f"{number:08}", f"user{number}") for number in range(200)]
BY_NICKNAME = [ByNickname(user.nickname) for user in CROWD]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "users.db", *CROWD)


@contextmanager
def counted() -> Iterator[list[str]]:
    """The statements with values that SQLite's thread is given."""
    statements = []
    fetch = aiosqlite.Connection.execute_fetchall

    def noting(connection: Any, sql: str, values: Sequence[Any] = ()) -> Any:
        if len(values) > 0:
            statements.append(sql)
        return fetch(connection, sql, values)

    with mock.patch.object(aiosqlite.Connection, "execute_fetchall", noting):
        yield statements


async def outcomes(backend: Served, queries: Sequence[Query]) -> list[Any]:
    return await asyncio.gather(*map(backend.find, queries), return_exceptions=True)


async def test_lookups_share_statements_unless_each_takes_long(path: Path) -> None:
    """Without an index each reads the whole table, and a deadline should end one of them alone."""
    queries: list[Query] = []
    expected: list[User | None] = []
    for user in CROWD:
        queries += [ByNickname(user.nickname), ByCard(user.card_number)]
        queries += [ByNickname(f"no-{user.nickname}"), ByNickname(user.nickname)]
        expected += [user, user, None, user]
    run(path, "CREATE TABLE slow AS SELECT * FROM users")
    for table in ("users", "slow"):
        async with serving(path, table=table) as backend:
            with counted() as statements:
                assert await outcomes(backend, queries) == expected
        is_shared = len(statements) < len(queries) / 10
        assert is_shared == (table == "users")


async def test_lookup_by_card_number_does_not_wait_for_a_crowd_of_nicknames(path: Path) -> None:
    queries = [ByCard("00000000"), *BY_NICKNAME]
    async with serving(path) as backend:
        by_card, *others = [asyncio.create_task(backend.find(query)) for query in queries]
        assert await by_card == CROWD[0]
        assert not all(each.done() for each in others)
        assert await asyncio.gather(*others) == CROWD


async def test_a_bad_row_affects_no_other_lookup(path: Path) -> None:
    run(path, "INSERT INTO users VALUES ('bad', '9', CAST(x'ff' AS TEXT), NULL)")
    async with serving(path) as backend:
        for number in (1, 2, 3, len(CROWD)):
            queries = [BY_NICKNAME[0], ByNickname("bad"), *BY_NICKNAME[1:number]]
            first, bad, *others = await outcomes(backend, queries)
            assert "not valid UTF-8" in repr(bad)
            assert [first, *others] == CROWD[:number]
        with counted() as statements:
            await outcomes(backend, [ByNickname("bad")])
    assert len(statements) == 1  # only a locked database is asked again


async def test_callers_that_leave_take_nothing_from_the_others(path: Path) -> None:
    async with serving(path) as backend:
        for turns in range(12):
            callers = [asyncio.create_task(backend.find(query)) for query in BY_NICKNAME]
            for _ in range(turns):
                await asyncio.sleep(0)
            for caller in callers[::3]:
                caller.cancel()
            reported = await asyncio.gather(*callers, return_exceptions=True)
            for place, (user, end) in enumerate(zip(CROWD, reported, strict=True)):
                left = place % 3 == 0 and isinstance(end, asyncio.CancelledError)
                assert left or end == user


SLOW = """
CREATE TABLE quick (nickname TEXT PRIMARY KEY, card_number TEXT UNIQUE, plan TEXT);
INSERT INTO quick VALUES ('alice', '4000123412341234', 'Free');
CREATE VIEW users AS
    SELECT nickname, card_number, plan, NULL AS profile_url FROM quick
    UNION ALL
    SELECT 'slow', card_number, 'Free', NULL FROM (
        WITH RECURSIVE far (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM far WHERE n < 1000000000)
        SELECT CAST(max(n) AS TEXT) AS card_number FROM far
    )
"""


@pytest.fixture
def backend(tmp_path: Path, io_loop: IOLoop) -> Iterator[Served]:
    """A view in which alice is found at once by nickname, and "slow" after minutes."""
    run(tmp_path / "slow.db", SLOW)
    with serving_in(io_loop, tmp_path / "slow.db") as backend:
        yield backend


async def begun(backend: Served) -> None:
    """Waits until SQLite is at work on a query."""
    (reader,) = backend._file.readers  # noqa: SLF001 - the file of the backend
    deadline = time.monotonic() + 5
    while all(rows.done() for _, rows in reader.running):
        assert time.monotonic() < deadline
        await asyncio.sleep(0)


async def test_a_query_without_callers_delays_no_other(backend: Served) -> None:
    """Neither the one that runs nor those that wait behind it."""
    slow = [asyncio.create_task(backend.find(ByNickname("slow"))) for _ in range(5)]
    await begun(backend)
    alice = asyncio.create_task(backend.find(ByNickname("alice")))
    for task in slow:
        task.cancel()
    assert await asyncio.wait_for(alice, timeout=2) == ALICE
    await asyncio.wait(slow)
    assert all(each.cancelled() for each in slow)
    assert await asyncio.wait_for(backend.find(ByNickname("alice")), timeout=2) == ALICE


async def test_a_query_whose_caller_left_is_never_started(backend: Served) -> None:
    """Its caller left while it waited behind another query."""
    started: list[str] = []
    await backend._file.readers[0].connection.set_trace_callback(started.append)  # noqa: SLF001 - the file of the backend
    slow = asyncio.create_task(backend.find(ByNickname("slow")))
    await begun(backend)
    leaving = asyncio.create_task(backend.find(ByNickname("alice")))
    await asyncio.sleep(0)
    leaving.cancel()
    slow.cancel()
    await asyncio.wait([leaving, slow])
    assert await backend.find(ByNickname("alice")) == ALICE
    assert len([sql for sql in started if "alice" in sql]) == 1


async def test_a_query_that_is_waited_for_survives_the_end_of_others(backend: Served) -> None:
    """Each of many callers that leave stops its own query alone."""
    for _ in range(20):
        leaving = asyncio.create_task(backend.find(ByNickname("slow")))
        staying = asyncio.create_task(backend.find(ByNickname("alice")))
        await begun(backend)
        leaving.cancel()
        assert await asyncio.wait_for(staying, timeout=2) == ALICE


async def test_closing_ends_what_still_runs(tmp_path: Path) -> None:
    """In each reader. Until then, the reader that is free answers."""
    run(tmp_path / "slow.db", SLOW)
    async with serving(tmp_path / "slow.db", readers=2) as backend:
        asked = [asyncio.create_task(backend.find(ByNickname("slow")))]
        await asyncio.sleep(0)
        for _ in range(2):
            assert await asyncio.wait_for(backend.find(ByNickname("alice")), timeout=5) == ALICE
        asked += [asyncio.create_task(backend.find(ByNickname("slow"))) for _ in range(2)]
        await asyncio.sleep(0)
    await asyncio.wait(asked, timeout=5)
    assert {type(each.exception()) for each in asked} == {Unavailable}


async def test_a_query_that_runs_when_the_damage_is_seen_raises_its_reason(backend: Served) -> None:
    """Not that the connection was closed, which the chain might pass over."""
    asked = asyncio.create_task(backend.find(ByNickname("slow")))
    await begun(backend)
    backend._error = Broken("the database is damaged")  # noqa: SLF001 - the file of the backend
    await backend._drop()  # noqa: SLF001 - the file of the backend
    with pytest.raises(Broken, match="the database is damaged"):
        await asyncio.wait_for(asked, timeout=5)

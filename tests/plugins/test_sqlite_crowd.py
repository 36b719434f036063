"""The SQLite backend when many ask at once: several lookups go in one statement."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import aiosqlite
import pytest

from idv_sqlite.backend import SqliteBackend
from support.databases.sqlite_databases import run, serving
from tornado_idv import Broken, ByCard, ByNickname, Query, User

MANY = 200
USERS = [User("Free", f"{number:08}", f"user{number}") for number in range(MANY)]
TABLE = "CREATE TABLE users(nickname TEXT {unique}, card_number TEXT {unique}, plan TEXT);"
INSERT = "INSERT INTO users VALUES ('{user.nickname}', '{user.card_number}', '{user.plan}');"


def table(path: Path, *, unique: str = "UNIQUE", more: str = "") -> Path:
    rows = [INSERT.format(user=user) for user in USERS]
    run(path, "BEGIN;" + TABLE.format(unique=unique) + "".join(rows) + more + "COMMIT;")
    return path


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


async def outcomes(backend: SqliteBackend, queries: Sequence[Query]) -> list[Any]:
    return await asyncio.gather(*map(backend.find, queries), return_exceptions=True)


async def test_each_of_many_callers_gets_its_own_user(tmp_path: Path) -> None:
    queries: list[Query] = []
    expected: list[User | None] = []
    for user in USERS:
        queries += [ByNickname(user.nickname), ByCard(user.card_number)]
        queries += [ByNickname(f"no-{user.nickname}"), ByNickname(user.nickname)]
        expected += [user, user, None, user]
    async with serving(table(tmp_path / "users.db")) as backend:
        with counted() as statements:
            assert await outcomes(backend, queries) == expected
    assert len(statements) < len(queries) / 10


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("('bad', '9', CAST(x'ff' AS TEXT))", "not valid UTF-8"),
        ("('bad', '9', x'00')", "is not text"),
    ],
    ids=["no UTF-8", "bytes"],
)
async def test_a_bad_row_affects_no_other_lookup(tmp_path: Path, row: str, reason: str) -> None:
    queries = [ByNickname(user.nickname) for user in USERS]
    queries.insert(7, ByNickname("bad"))
    path = table(tmp_path / "users.db", more=f"INSERT INTO users VALUES {row};")
    async with serving(path) as backend:
        reported = await outcomes(backend, queries)
    bad = reported.pop(7)
    assert isinstance(bad, Broken)
    assert reason in bad.reason
    assert reported == USERS


async def test_callers_that_leave_take_nothing_from_the_others(tmp_path: Path) -> None:
    async with serving(table(tmp_path / "users.db")) as backend:
        for turns in range(12):
            callers = [
                asyncio.create_task(backend.find(ByNickname(user.nickname))) for user in USERS
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            for caller in callers[::3]:
                caller.cancel()
            reported = await asyncio.gather(*callers, return_exceptions=True)
            for place, (user, end) in enumerate(zip(USERS, reported, strict=True)):
                left = place % 3 == 0 and isinstance(end, asyncio.CancelledError)
                assert left or end == user


async def test_where_each_lookup_takes_long_none_waits_for_its_neighbours(tmp_path: Path) -> None:
    """Without an index each reads the whole table, and a deadline should end one of them alone."""
    queries = [ByNickname(user.nickname) for user in USERS]
    async with serving(table(tmp_path / "users.db", unique="")) as backend:
        with counted() as statements:
            assert await outcomes(backend, queries) == USERS
    assert len(statements) == MANY

"""Lookups in tables and views of any column types, compared with the rows that SQLite gives.

A column of a view has the affinity of one of its tables, and SQLite converts what it compares.
"""

import random
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from idv_sqlite.backend import SqliteBackend
from support.databases.sqlite_databases import run, serving
from tornado_idv import ByCard, ByNickname, LookupFailed, Query, StartError, User

BOTH = "(SELECT * FROM a UNION ALL SELECT * FROM b)"
VIEWS: Mapping[str, str] = {
    "UNION ALL": f"SELECT * FROM {BOTH}",
    "UNION": "SELECT * FROM a UNION SELECT * FROM b",
    "GROUP BY card": f"SELECT nickname, card_number, max(plan) AS plan FROM {BOTH} GROUP BY 2",
    "LIMIT": f"SELECT * FROM {BOTH} LIMIT 1000",
    "EXCEPT": "SELECT * FROM a EXCEPT SELECT * FROM d",
    "an expression": "SELECT nickname, coalesce(card_number, nickname) AS card_number, plan FROM a",
    "a window": f"""SELECT nickname, card_number, plan FROM
        (SELECT *, row_number() OVER (PARTITION BY nickname) AS r FROM {BOTH}) WHERE r = 1""",
}
NOT_TEXT: Mapping[str, tuple[str, str]] = {
    "real numbers": ("(nickname, card_number, plan)", "12.0, 12.0"),
    "any numbers": ("(nickname, card_number, plan)", "5, 1, 0), (0.00001, 2, 0), (0.5, 3"),
    "a STRICT table": ("(nickname ANY, card_number ANY, plan TEXT) STRICT", "12, 12"),
    "bytes": ("(nickname TEXT UNIQUE, card_number VARCHAR UNIQUE, plan)", "x'3132', x'3132'"),
    "bytes of UTF-16": ("(nickname BLOB, card_number TEXT, plan)", "x'3132', x'31003200'"),
}
TYPES = ["TEXT", "VARCHAR(32)", "INTEGER", "BIGINT", "NUMERIC", "REAL", "DOUBLE", "", "BLOB", "ANY"]
NICKNAMES = ["alice", "12", "0012", "4000", "1e5", "100000", ".5", "0.5", "5", "5.0", "-1", "1e400"]
NICKNAMES += ["+5", "1e-5"]
CARDS = ["4000123412341234", "12", "0012", "100000", "0", "9007199254740993", "9" * 20]
QUERIES: Sequence[Query] = [*map(ByNickname, NICKNAMES), *map(ByCard, CARDS)]
STORED: Sequence[Callable[[str], Any]] = [
    *(str, str, str, str, str.encode),
    lambda text: int(text) if text.isdigit() and len(text) < 19 else text,
    lambda text: float(text) if text.isdigit() else text,
]


def make(path: Path, view: str | None, choose: random.Random) -> None:
    """Create three tables of random types with random users, and the view ``v``."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA encoding = '{choose.choice(['UTF-8', 'UTF-8', 'UTF-16'])}'")
        for table in "abd":
            types = choose.choices(TYPES, k=2)
            connection.execute(
                f"CREATE TABLE {table} (nickname {types[0]}, card_number {types[1]}, plan TEXT)"
            )
            if choose.random() < 0.6:
                connection.execute(f"CREATE INDEX {table}1 ON {table} (nickname)")
                connection.execute(f"CREATE INDEX {table}2 ON {table} (card_number)")
        for nickname in choose.sample(NICKNAMES, 5):
            row = choose.choice(STORED)(nickname), choose.choice(STORED)(choose.choice(CARDS))
            table = choose.choice("abd")
            connection.execute(f"INSERT INTO {table} VALUES (?, ?, 'Free')", row)
        if view is not None:
            connection.execute(f"CREATE VIEW v AS {view}")
        connection.commit()


def equals(value: Any, query: Query, encoding: str) -> bool:
    """Return whether a stored value may be that of the query, in any form that SQLite gives it."""
    text = query.nickname if isinstance(query, ByNickname) else query.card_number
    if isinstance(value, str):
        return value == text
    if isinstance(value, bytes):
        return value in {text.encode(), text.encode(encoding)}
    if not re.fullmatch(r"[-+]?[0-9]*(\.[0-9]+)?(e-?[0-9]+)?", text):  # 0012 may be stored as 12
        return False
    return value == Decimal(text) if isinstance(value, int) else value == float(text)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("view", [None, *VIEWS.values()], ids=["a table", *VIEWS])
async def test_user_of_any_types_is_found(tmp_path: Path, view: str | None, seed: int) -> None:
    path, choose = tmp_path / "users.db", random.Random(f"{view} {seed}")
    make(path, view, choose)
    case = choose.choice(["preserve", "preserve", "fold"])
    try:
        await check_all(path, "a" if view is None else "v", case)
    except StartError as error:
        assert "turns digits into numbers" in str(error)  # noqa: PT017 - one of two good ends


@pytest.mark.parametrize(("columns", "row"), NOT_TEXT.values(), ids=NOT_TEXT)
async def test_user_without_text_is_broken(tmp_path: Path, columns: str, row: str) -> None:
    """The user is there: "not known" would be wrong, and lost zeros cannot be restored."""
    path, encoding = tmp_path / "users.db", "UTF-16" if "00" in row else "UTF-8"
    run(path, f"PRAGMA encoding = '{encoding}'; CREATE TABLE a {columns}")
    run(path, f"INSERT INTO a VALUES ({row}, 'Free'), ('alice', '4000', 'Free')")
    assert await check_all(path, "a", "preserve") >= 2


async def check_all(path: Path, table: str, case: str) -> int:
    """Compare all lookups with the rows of the table. Return how many failed."""
    with closing(sqlite3.connect(path)) as connection:
        table_rows = connection.execute(
            f"SELECT nickname, card_number, plan FROM {table}"
        ).fetchall()
        ((encoding,),) = connection.execute("PRAGMA encoding")
    failed = 0
    async with serving(path, case, table=table) as backend:
        for query in QUERIES:
            column = isinstance(query, ByCard)
            rows = [row for row in table_rows if equals(row[column], query, encoding)]
            failed += await check(backend, query, rows)
    return failed


async def check(backend: SqliteBackend, query: Query, rows: Sequence[Sequence[Any]]) -> bool:
    """Compare a lookup with the rows that it may find. Return whether it failed."""
    try:
        user = await backend.find(query)
    except LookupFailed:
        assert rows
        assert len(rows) > 1 or not all(type(value) is str for value in rows[0])
        return True
    assert (user is None) == (not rows)
    if user is not None:
        ((nickname, card_number, plan),) = rows
        assert user == User(plan, card_number, nickname)
    return False

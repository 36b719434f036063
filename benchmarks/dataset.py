"""The users of the lookups, and files with them."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

from benchmarks.plan import Advance, Plan
from tornado_idv import ByCard, ByNickname, Query

SITE = "https://profiles.example"
_FIRST_CARD = 4_000_000_000_000_000
_BATCH = 20_000
_SEED = 7
_TABLE = """\
CREATE TABLE users(
    nickname TEXT PRIMARY KEY, card_number TEXT NOT NULL UNIQUE, plan TEXT NOT NULL,
    profile_url TEXT)
"""


def nickname(number: int) -> str:
    return f"user{number:08d}"


def card_number(number: int) -> str:
    return str(_FIRST_CARD + number)


def record(number: int) -> dict[str, str]:
    """Return the response record for a user."""
    return {
        "status": "ok",
        "plan": "Free",
        "card_number": card_number(number),
        "nickname": f"@{nickname(number)}",
        "profile_url": f"{SITE}/m/{nickname(number)}",
    }


def queries(keys: int, users: int) -> list[Query]:
    """Return queries for ``keys`` of the users, each by nickname and by card, shuffled."""
    chooser = random.Random(_SEED)
    numbers = chooser.sample(range(users), min(keys, users))
    result: list[Query] = [ByNickname(nickname(number)) for number in numbers]
    result += [ByCard(card_number(number)) for number in numbers]
    chooser.shuffle(result)
    return result


def write_fixture(path: Path, users: int) -> None:
    rows = (
        f'  - {{nickname: "@{nickname(number)}", card_number: "{card_number(number)}", plan: Free}}'
        for number in range(users)
    )
    path.write_text("\n".join(["users:", *rows, ""]), encoding="utf-8")


def table(plan: Plan, users: int) -> Path:
    """Return a SQLite file with this many users. An existing file is reused."""
    path = plan.folder / f"users-{users}.db"
    if not path.exists():
        unfinished = path.with_suffix(".part")
        unfinished.unlink(missing_ok=True)
        with plan.step(f"a table of {users:,} users", users) as advance:
            _fill(unfinished, users, advance)
        unfinished.rename(path)
    return path


def _fill(path: Path, users: int, advance: Advance) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(_TABLE)
        for first in range(0, users, _BATCH):
            numbers = range(first, min(first + _BATCH, users))
            rows = ((nickname(number), card_number(number), "Free") for number in numbers)
            connection.executemany("INSERT INTO users VALUES (?, ?, ?, NULL)", rows)
            advance(len(numbers))
        connection.commit()

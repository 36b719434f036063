"""Faults of files. Each function damages the file at a path."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

Damage = Callable[[Path], object]
GARBAGE = b"garbage " * 2000
BOMBS = {
    "aliases": "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nusers: [*c, *c]\n",
    "merge keys": "users: [{<<: &a {nickname: alice}, <<: *a, <<: *a}]\n",
    "nesting": "users: " + "[" * 100_000 + "]" * 100_000 + "\n",
    "one long line": "users: [" + "{}, " * 10_000 + "]\n",
}


def overwrite(path: Path, content: bytes) -> None:
    """Write the content into the same file."""
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(content)


def garble(path: Path) -> None:
    """Overwrite the file with garbage. The file is never empty, which would be another fault."""
    with path.open("r+b") as file:
        file.write(GARBAGE)
        file.truncate()


def cut(path: Path) -> None:
    """Truncate the file to half its size."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """Truncate the file to no size."""
    os.truncate(path, 0)


def renamed_over(content: bytes) -> Damage:
    """Return a function that renames a new file with this content over the old one."""

    def damage(path: Path) -> None:
        bad = path.with_name("bad")
        bad.write_bytes(content)
        bad.replace(path)

    return damage


def drop_table(path: Path) -> None:
    execute(path, "DROP TABLE users")


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Lock the database, and yield the connection that holds the lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        yield writer
        writer.execute("COMMIT")

"""Tables of users in the databases of user stores, each by its own client."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from tornado_idv import ImportResult, User, UserStore
from tornado_idv.interfaces.backend import AnyBackend

Mode = Literal["replace", "merge"]
Row = tuple[str | None, ...]
Done = tuple[ImportResult, list[tuple[int, str]], int]
"""The result of an import, the rejected lines, and the number of users that were stored before."""
UNIQUE = """nickname TEXT PRIMARY KEY, card_number TEXT NOT NULL UNIQUE, plan TEXT NOT NULL,
 profile_url TEXT"""
LOOSE = "nickname TEXT, card_number TEXT, plan TEXT, since TEXT DEFAULT 'now'"
"""Neither constraints nor indexes, and no profile URLs, but a column that is not ours."""


class UserTable(ABC):
    """The table ``users``, which is there and empty, and the options of a backend over it."""

    kind: ClassVar[type[AnyBackend]]
    caseless: ClassVar[str]
    """The collation by which a column of it ignores case."""
    unreachable: ClassVar[Mapping[str, str]]
    """Options of a source that is not there."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.folder = folder
        self.options = options

    @abstractmethod
    def run(self, script: str) -> list[Row]:
        """Run SQL, and return the rows of one SELECT; an empty text is returned as ``None``."""

    @abstractmethod
    def lock(self) -> None:
        """Take and release the lock of writers; raises an error while an import has it."""

    @abstractmethod
    def writing(self, script: str) -> AbstractContextManager[None]:
        """Run SQL in a transaction that is committed at the end, maybe in another thread."""

    @abstractmethod
    def wait_briefly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make imports wait for the locks of others for a moment only."""

    @abstractmethod
    def fail_commit(self, monkeypatch: pytest.MonkeyPatch, *, uncertain: bool) -> None:
        """Make the commit of an import fail, or be without a confirmation."""

    def store(self, *, fold: bool = False, **options: Any) -> UserStore:
        """Return the store of the table with these options besides."""
        values = {"name": "people", **self.options, **options}
        context = {"base_dir": self.folder, "nickname_case": "fold" if fold else "preserve"}
        validated = self.kind.options_type.model_validate(values, context=context)
        store: UserStore | None = self.kind.user_store(validated)
        assert store is not None
        return store

    def load(
        self,
        users: Iterable[User],
        mode: Mode = "replace",
        *,
        lines: Iterable[int] = (),
        meanwhile: Callable[[], object] = lambda: None,
        **options: Any,
    ) -> Done:
        """Import users, by default from line 2 on; ``meanwhile`` is called by the review."""
        reviews: list[tuple[list[tuple[int, str]], int, int]] = []

        def review(rejected: Iterable[tuple[int, str]], removed: int, stored: int) -> None:
            meanwhile()
            reviews.append((sorted(rejected), removed, stored))

        store = self.store(**options)
        write = store.replace if mode == "replace" else store.merge
        result = write(zip(lines or count(2), users, strict=False), review)
        ((rejected, removed, stored),) = reviews
        assert result.removed == removed
        return result, rejected, stored

    def configure(self, *others: str) -> Path:
        """Write a configuration with the backend ``people`` over the table, and these ones."""
        people = json.dumps({"name": "people", **self.options})
        config = self.folder / "config.yaml"
        config.write_text(
            f"profile_sites: [https://profiles.example]\nbackends: [{', '.join([people, *others])}]"
        )
        return config

    def create(self, columns: str, *rows: Row) -> None:
        """Replace the table by one with these columns and rows."""
        self.run(f"DROP TABLE users; CREATE TABLE users ({columns}); {_insert(rows)}")

    def write(self, *users: User) -> None:
        """Put these users into the empty table."""
        fields = ("nickname", "card_number", "plan", "profile_url")
        self.run(_insert([tuple(getattr(each, name) for name in fields) for each in users]))

    def users(self) -> set[User]:
        """Return the users in a table that has profile URLs."""
        rows = self.run("SELECT plan, card_number, nickname, profile_url FROM users")
        return {User(*row) for row in rows}


def _insert(rows: Collection[Row]) -> str:
    values = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
    return f"INSERT INTO users VALUES {values}" if rows else ""


def _literal(value: str | None) -> str:
    return "NULL" if value is None else "'{}'".format(value.replace("'", "''"))

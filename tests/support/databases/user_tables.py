"""Tables of users in the databases of user stores, each by its own client."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from support.databases.user_lists import cells, insert_statement
from tornado_idv import User, UserStore
from tornado_idv.features.users.formats import Row
from tornado_idv.features.users.import_users import Import, Result
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.option_values import Share

Mode = Literal["replace", "merge"]
Cells = tuple[str | None, ...]
Done = tuple[tuple[int, int, int, int], list[tuple[int, str]]]
"""How many users were imported, added, updated and removed, and the rejected lines."""
UNIQUE = """nickname TEXT PRIMARY KEY, card_number TEXT NOT NULL UNIQUE, plan TEXT NOT NULL,
 profile_url TEXT"""
LOOSE = "nickname TEXT, card_number TEXT, plan TEXT, since TEXT DEFAULT 'now'"
"""Neither constraints nor indexes, and no profile URLs, but a column that is not ours."""


class UserTable(ABC):
    """The table ``users``, which is there and empty, and the options of a backend over it."""

    kind: ClassVar[type[AnyBackend]]
    caseless: ClassVar[str]
    """The collation by which a column of it ignores case."""
    row_id: ClassVar[str]
    """A column that numbers the rows, which other tables may refer to."""
    unreachable: ClassVar[Mapping[str, str]]
    """Options of a source that is not there."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.folder = folder
        self.options = options

    @abstractmethod
    def run(self, script: str) -> list[Cells]:
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
        """Import users, by default from line 2 on; ``meanwhile`` is called before the commit."""
        rows = (
            (line, (user.nickname, user.card_number, user.plan, user.profile_url or ""))
            for line, user in zip(lines or count(2), users, strict=False)
        )
        result, rejected, _ = self.load_rows(rows, mode, meanwhile=meanwhile, **options)
        return result[:4], rejected

    def load_rows(
        self,
        rows: Iterable[Row],
        mode: Mode = "replace",
        *,
        meanwhile: Callable[[], object] = lambda: None,
        fold: bool = False,
        **options: Any,
    ) -> tuple[Result, list[tuple[int, str]], list[str]]:
        """Import the rows of a list; return the result, the rejected lines, and the notes."""
        store = self.store(fold=fold, **options)
        calls = [meanwhile]

        def before_commit() -> None:
            if calls:  # the import calls this after the commit, too
                calls.pop()()

        sites = [ProfileSite.parse("https://profiles.example")]
        identifiers = Identifiers(sites, nickname_case="fold" if fold else "preserve")
        file = str(self.folder / "list")
        how: Any = {"merges": mode == "merge", "is_dry_run": False, "on_change": before_commit}
        job = Import(file, Share.parse("100%"), Decimal(100), None, {}, **how)
        result, notes = job.run(iter(rows), identifiers, store)
        path = job.beside("rejected")
        reasons = path.read_text().splitlines() if path.exists() else []
        lines = [each.removeprefix(f"{file}:").split(": ", 1) for each in reasons]
        return result, [(int(line), reason) for line, reason in lines], notes

    def configure(self, *others: str) -> Path:
        """Write a configuration with the backend ``people`` over the table, and these ones."""
        people = json.dumps({"name": "people", **self.options})
        config = self.folder / "config.yaml"
        config.write_text(
            f"profile_sites: [https://profiles.example]\nbackends: [{', '.join([people, *others])}]"
        )
        return config

    def create(self, columns: str, *rows: Cells) -> None:
        """Replace the table by one with these columns and rows."""
        self.run(f"DROP TABLE users; CREATE TABLE users ({columns}); {insert_statement(*rows)}")

    def write(self, *users: User) -> None:
        """Put these users into the empty table."""
        self.run(insert_statement(*map(cells, users)))

    def users(self) -> set[User]:
        """Return the users in a table that has profile URLs."""
        rows = self.run("SELECT plan, card_number, nickname, profile_url FROM users")
        return {User(*row) for row in rows}

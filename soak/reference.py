"""Files with users, and the reference: the true record of each user at any time.

Times are from ``time.monotonic``. During an edit, both the old and the new record are valid.
"""

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from sqlite3 import connect

from soak.people import Person, fixture
from support.processes.service import make_database

_RECENT = 30
_TURNED_OVER = 8


@dataclass
class _Change:
    plan: str | None
    begun: float
    ended: float = math.inf


@dataclass
class Reference:
    """The plan of each user at each time. ``None`` stands for a user who does not exist."""

    now: Callable[[], float] = time.monotonic
    _changes: dict[str, list[_Change]] = field(default_factory=dict)

    def begin(self, nickname: str, plan: str | None) -> None:
        """Record the start of a write of one user."""
        never = [_Change(None, -math.inf, -math.inf)]
        self._changes.setdefault(nickname, never).append(_Change(plan, self.now()))

    def end(self) -> None:
        """Record the end of all writes that have begun."""
        now = self.now()
        for changes in self._changes.values():
            changes[-1].ended = min(changes[-1].ended, now)

    def was(self, nickname: str, plan: str | None, since: float, until: float) -> bool:
        """Return whether the user had this plan at some time in the period."""
        changes = [*self._changes.get(nickname, ())]  # a copy: a thread may append
        if not changes:
            return plan is None
        ends = [change.ended for change in changes[1:]] + [math.inf]
        return any(
            change.plan == plan and change.begun <= until and end >= since
            for change, end in zip(changes, ends, strict=True)
        )

    def plans(self, nickname: str) -> list[tuple[str | None, float]]:
        """Return the plans of a user with the start times of their writes."""
        return [(each.plan, each.begun) for each in self._changes.get(nickname, ())]


class Source(ABC):
    """A source of users. All their nicknames begin with ``letter``."""

    def __init__(self, letter: str, reference: Reference, size: int = 40) -> None:
        self.letter, self.reference = letter, reference
        self.people: dict[str, Person] = {}
        self.recent: deque[Person] = deque(maxlen=_RECENT)
        """The last changed, added and removed users."""
        self._made = self._edits = 0
        for _ in range(size):
            self._change(self._newcomer())
        self.make()
        reference.end()
        self.marker = next(iter(self.people.values()))

    @abstractmethod
    def make(self) -> None:
        """Create the source again, for example after damage."""

    @abstractmethod
    def write(self) -> None:
        """Write the users in the usual way for this source."""

    def stranger(self, number: int) -> Person:
        """Return an absent user, whose nickname has the letter of this source."""
        return Person(f"{self.letter}-no{number}", f"{ord(self.letter)}7{number:08}")

    def edit(self, random: Random) -> None:
        """Change, add or remove a user, often one of the most requested users."""
        others = [*self.people.values()][1:]
        person = random.choice(others[: random.choice([4, len(others)])])
        change = random.choice(["plan", "add", "remove"])
        if change == "remove" and len(self.people) > 20:
            self._remove(person)
        else:
            self._change(self._newcomer() if change == "add" else self._edited(person))
        self.write()
        self.reference.end()

    def add(self) -> None:
        """Add a user."""
        self._change(self._newcomer())
        self.write()
        self.reference.end()

    def turn_over(self, random: Random) -> None:
        """Add some users, and remove others."""
        for person in random.sample([*self.people.values()][1:], _TURNED_OVER):
            self._remove(person)
            self._change(self._newcomer())
        self.write()
        self.reference.end()

    def mark(self, *, recreate: bool) -> Person:
        """Change the first user, as a marker for the current state."""
        self.marker = self._edited(self.marker)
        self._change(self.marker)
        self.make() if recreate else self.write()
        self.reference.end()
        return self.marker

    def _edited(self, person: Person) -> Person:
        self._edits += 1
        return Person(person.nickname, person.card, f"Plan {self._edits}")

    def _newcomer(self) -> Person:
        self._made += 1
        number = self._made
        return Person(f"{self.letter}-{number}", f"{ord(self.letter)}1{number:08}", "Free")

    def _change(self, person: Person) -> None:
        self.reference.begin(person.nickname, person.plan)
        self.people[person.nickname] = person
        self.recent.append(person)

    def _remove(self, person: Person) -> None:
        self.reference.begin(person.nickname, None)
        del self.people[person.nickname]
        self.recent.append(person)


class FileSource(Source):
    """A source in a file. After damage, a new file is renamed over it."""

    def __init__(self, path: Path, letter: str, reference: Reference) -> None:
        self.path = path
        super().__init__(letter, reference)


class YamlSource(FileSource):
    """A source in a YAML fixture that contains the count of users."""

    def make(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(fixture(*self.people.values()))
        new.replace(self.path)

    def write(self) -> None:
        self.make()


class SqliteSource(FileSource):
    """A source in a SQLite database. After damage, a new database replaces it."""

    def make(self) -> None:
        new = self.path.with_suffix(".new")
        new.unlink(missing_ok=True)
        make_database(new, *(each.row for each in self.people.values()))
        new.replace(self.path)

    def write(self) -> None:
        with closing(connect(self.path)) as connection, connection:
            connection.execute("DELETE FROM users")
            rows = [each.row for each in self.people.values()]
            connection.executemany("INSERT INTO users VALUES (?, ?, ?, ?)", rows)

"""The revision of a SQLite file: by it, answers from before a restart are dropped."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from idv_sqlite import openfile
from idv_sqlite.openfile import revision_of
from support.databases.sqlite_databases import ALICE, BOB, insert, run, serving, write

_MINUTE = 60 * 10**9


class Clock:
    """The clock of the machine, a minute ahead: files have settled."""

    ahead = _MINUTE

    def __init__(self) -> None:
        self._time_ns = time.time_ns

    def __call__(self) -> int:
        return self._time_ns() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(openfile.time, "time_ns", clock)
    return clock


@pytest.fixture
def people(tmp_path: Path) -> Path:
    return write(tmp_path / "people.db", ALICE)


def revision(path: Path) -> str:
    return revision_of(path, path.resolve())


def _edit_in_place(path: Path) -> None:
    """Change a plan, and put size and modification time back."""
    status = path.stat()
    run(path, "UPDATE users SET plan = 'Frei'")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size


def _copy_over(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    copy.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a row": lambda path: insert(path, BOB),
    "a row, with the same times and size": _edit_in_place,
    "another file": _copy_over,
    "a link elsewhere": lambda path: [path.rename(path.with_name("a")), path.symlink_to("a")],
}


@pytest.mark.parametrize("change", CHANGES)
def test_differs_after_a_change_and_only_then(people: Path, clock: Clock, change: str) -> None:
    assert clock.ahead
    before = revision(people)
    assert revision(people) == before
    CHANGES[change](people)
    assert revision(people) != before


def test_differs_after_a_change_in_wal_mode(people: Path, clock: Clock) -> None:
    assert clock.ahead
    with closing(sqlite3.connect(people)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        revisions = [revision(people)]
        for plan in ("a", "b"):
            database.execute("UPDATE users SET plan = ?", [plan])
            database.commit()
            revisions.append(revision(people))
        assert len({*revisions}) == 3
        assert revision(people) == revisions[-1]
        # A log that was written to the file is begun again, and keeps its size.
        database.execute("PRAGMA wal_checkpoint(RESTART)")
        revisions.append(revision(people))
        size = Path(f"{people}-wal").stat().st_size
        time.sleep(0.02)  # the times of a file are those of the last tick
        database.execute("UPDATE users SET plan = 'c'")
        database.commit()
        assert Path(f"{people}-wal").stat().st_size == size
        assert revision(people) not in revisions


@pytest.mark.parametrize("age", [0, 1.9, -60])
def test_is_of_no_use_for_a_file_that_changed_just_now_or_in_the_future(
    people: Path, clock: Clock, age: float
) -> None:
    clock.ahead = int(age * 10**9)
    os.utime(people, (0, 0))  # a copy may keep an old time of modification
    changed = people.stat().st_ctime_ns
    clock._time_ns = lambda: changed
    assert revision(people) != revision(people)
    clock.ahead = 2 * 10**9
    assert revision(people) == revision(people)


async def test_changes_after_the_change_was_reported_and_not_before(
    people: Path, clock: Clock
) -> None:
    assert clock.ahead
    async with serving(people) as backend:
        at_report: list[str | None] = []
        backend.on_change(lambda: at_report.append(backend.revision))
        before = backend.revision
        await backend.check()
        assert (backend.revision, at_report) == (before, [])
        insert(people, BOB)
        assert backend.revision == before
        await backend.check()
        assert at_report == [before]
        after = backend.revision
        assert after not in (before, None)
    assert backend.revision is None
    async with serving(people) as backend:
        assert backend.revision == after


async def test_settles_without_another_change(people: Path, clock: Clock) -> None:
    clock.ahead = 0
    changed = people.stat().st_ctime_ns
    clock._time_ns = lambda: changed
    async with serving(people) as backend:
        assert backend.revision is not None
        clock.ahead = _MINUTE
        await backend.check()
        assert backend.revision == revision(people)


async def test_file_that_is_gone_or_damaged_leaves_no_revision_that_is_found_again(
    people: Path, clock: Clock
) -> None:
    assert clock.ahead
    async with serving(people) as backend:
        before = backend.revision
        people.rename(people.with_name("gone"))
        await backend.check()
        assert backend.revision == before  # the old file is still read
        write(people, BOB)
        await backend.check()
        assert backend.revision not in (before, None)

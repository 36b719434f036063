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

from idv_sqlite.openfile import revision_of
from support.databases.sqlite_databases import ALICE, BOB, insert, run, serving, write


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
def test_differs_after_a_change_and_only_then(people: Path, change: str) -> None:
    before = revision(people)
    assert revision(people) == before
    CHANGES[change](people)
    assert revision(people) != before


def test_differs_after_a_change_in_wal_mode(people: Path) -> None:
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


async def test_changes_after_the_change_was_reported_and_not_before(people: Path) -> None:
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


async def test_file_that_is_gone_or_damaged_leaves_no_revision_that_is_found_again(
    people: Path,
) -> None:
    async with serving(people) as backend:
        before = backend.revision
        people.rename(people.with_name("gone"))
        await backend.check()
        assert backend.revision == before  # the old file is still read
        write(people, BOB)
        await backend.check()
        assert backend.revision not in (before, None)

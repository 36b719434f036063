"""The file with the comparisons of a shadow: which of them count, and what a reader sees."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tornado_idv.errors import StartError
from tornado_idv.lookup.comparison import Comparison, ComparisonResult
from tornado_idv.lookup.shadow_file import Recorded, ShadowFile, Summary
from tornado_idv.model import ByCard, ByNickname, Query, User

ALICE = User("Free", "4000", "alice")
BY_NICKNAME, BY_CARD = ByNickname("alice"), ByCard("4000")
NOBODY = {"missing": 0, "extra": 0, "differs": 0, "match": 0, "unverified": 0}
DAY = 86400.0


@pytest.fixture
def file(tmp_path: Path) -> ShadowFile:
    made = ShadowFile(tmp_path / "shadow.db", "new")
    made.write([], 0, 0.0)
    return made


def compared(
    result: ComparisonResult,
    query: Query = BY_NICKNAME,
    began: float = 1.0,
    *,
    user: User | None = ALICE,
    fields: Sequence[str] = (),
) -> Recorded:
    return Recorded(query, Comparison(result, tuple(fields), user), began)


def write(file: ShadowFile, *comparisons: Recorded, now: float = 10.0) -> Summary:
    file.write(comparisons, 0, now)
    return file.summary()


def made_up(number: int, result: ComparisonResult = "match", began: float = 1.0) -> Recorded:
    user = User("Free", str(number), f"user{number}")
    return compared(result, ByNickname(user.nickname), began, user=user)


def listed(file: ShadowFile) -> list[tuple[str, list[str], list[str]]]:
    return [(each.result, each.fields, each.queries) for each in file.listed()]


def test_user_looked_up_by_nickname_and_by_card_counts_once(file: ShadowFile) -> None:
    summary = write(file, compared("match"), compared("match", BY_CARD), compared("match"))
    assert summary.users == {**NOBODY, "match": 1}
    assert summary.totals == {"match": 3}


@pytest.mark.parametrize(
    ("results", "user"),
    [
        (("match", "unverified"), "match"),
        (("unverified", "match"), "match"),
        (("unverified", "unverified"), "unverified"),
        (("differs", "match"), "differs"),
        (("extra", "differs"), "extra"),
        (("extra", "missing"), "missing"),
    ],
)
def test_most_severe_verdict_of_a_users_queries_counts(
    file: ShadowFile, results: tuple[ComparisonResult, ComparisonResult], user: str
) -> None:
    fields = {"differs": ["plan"]}
    rows = [
        compared(result, query, fields=fields.get(result, []))
        for query, result in zip((BY_NICKNAME, BY_CARD), results, strict=True)
    ]
    assert write(file, *rows).users == {**NOBODY, user: 1}


def test_verdict_replaces_what_was_there_and_nothing_else_does(file: ShadowFile) -> None:
    assert write(file, compared("unverified")).users["unverified"] == 1
    assert write(file, compared("missing")).users == {**NOBODY, "missing": 1}
    for result in ("unverified", "source_failed", "target_failed"):
        summary = write(file, compared(result, began=2.0))
        assert (summary.users["missing"], summary.totals[result]) == (1, 1 + (result[0] == "u"))
    assert write(file, compared("differs", began=3.0, fields=["plan"])).users["differs"] == 1
    assert write(file, compared("match", began=4.0)).users == {**NOBODY, "match": 1}
    assert listed(file) == []


def test_older_result_of_another_process_does_not_replace_a_newer_one(file: ShadowFile) -> None:
    write(file, compared("missing", began=5.0))
    assert write(file, compared("match", began=4.0)).users["missing"] == 1
    removed = compared("match", began=4.0, user=None)
    assert write(file, removed).users["missing"] == 1


def test_not_found_in_both_is_only_in_the_totals(file: ShadowFile) -> None:
    """Also where the query was of a user who has been removed from both since."""
    absent = compared("match", ByNickname("nobody"), user=None)
    summary = write(file, compared("missing"), absent, compared("unverified", BY_CARD, user=None))
    assert (summary.users, summary.totals["match"]) == ({**NOBODY, "missing": 1}, 1)
    assert write(file, compared("match", began=2.0, user=None)).users == NOBODY


def test_summary_has_days_fields_and_totals(file: ShadowFile) -> None:
    file.write([], 7, 10.0)
    bob = User("Pro", "5000", "bob")
    carl = User("Pro", "6000", "carl")
    summary = write(
        file,
        compared("differs", fields=["plan"]),
        compared("differs", BY_CARD, fields=["card_number", "plan"]),
        compared("differs", ByNickname("bob"), user=bob, fields=["plan"]),
        compared("differs", ByNickname("carl"), user=carl, fields=["plan"]),
        compared("match", began=2 * DAY, user=None),
        compared("target_failed", began=5 * DAY),
    )
    assert summary.differing == {frozenset({"plan"}): 2, frozenset({"card_number", "plan"}): 1}
    assert (summary.since, summary.days, summary.imported) == (0.0, 2, None)
    assert summary.totals == {"differs": 4, "match": 1, "target_failed": 1, "skipped": 7}


def test_only_users_that_are_not_the_same_are_in_the_file_in_full(file: ShadowFile) -> None:
    write(
        file,
        compared("match"),
        compared("missing", ByCard("777000777"), user=made_up(1).comparison.user),
    )
    content = file.path.read_bytes()
    assert (b"777000777" in content, b"alice" in content, b"user1" in content) == (
        True,
        False,
        False,
    )
    write(file, compared("match", ByCard("777000777"), 2.0, user=made_up(1).comparison.user))
    assert b"777000777" not in file.path.read_bytes()
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert list(file.path.parent.iterdir()) == [file.path]
    write(file, *(made_up(number, "missing", 3.0) for number in range(1000)))
    assert b"@user999" in file.path.read_bytes()
    file.begin_import(4.0)  # which frees pages
    assert b"@user" not in file.path.read_bytes()


def test_hashes_of_two_files_differ(file: ShadowFile, tmp_path: Path) -> None:
    """They cannot be computed without the key, which is in the file."""
    other = ShadowFile(tmp_path / "other.db", "new")
    other.write([], 0, 0.0)
    hashes = set()
    for each in (file, other):
        write(each, compared("missing"))
        (user,) = each.listed()
        assert re.fullmatch("[0-9a-f]{24}", user.user)
        hashes.add(user.user)
    assert len(hashes) == 2


def test_list_has_each_user_once_with_all_queries(file: ShadowFile) -> None:
    write(
        file,
        compared("differs", fields=["plan"]),
        compared("missing", BY_CARD, 3.0),
        made_up(1, "unverified"),
        made_up(2, "extra"),
        made_up(3),
    )
    assert listed(file) == [
        ("missing", ["plan"], ["4000", "@alice"]),
        ("extra", [], ["@user2"]),
        ("unverified", [], ["@user1"]),
    ]
    assert next(iter(file.listed())).compared == 3.0


def test_file_is_bounded_and_keeps_differences(tmp_path: Path) -> None:
    file = ShadowFile(tmp_path / "shadow.db", "new", max_rows=100)
    file.write([], 0, 0.0)
    write(file, *(made_up(number, "missing") for number in range(10)))
    for number in range(10, 300, 10):
        rows = (made_up(each, began=float(number)) for each in range(number, number + 10))
        summary = write(file, *rows)
        assert sum(summary.users.values()) <= 110
    assert summary.users == {**NOBODY, "missing": 10, "match": 90}
    write(file, made_up(299, "missing", 300.0))  # one of the latest, which are kept
    assert file.summary().users == {**NOBODY, "missing": 11, "match": 89}
    write(file, *(made_up(number, "extra", 400.0) for number in range(1000, 1200)))
    assert file.summary().users == {**NOBODY, "extra": 100}


def test_comparisons_from_before_the_end_of_an_import_do_not_count(file: ShadowFile) -> None:
    write(file, compared("match", began=5.0), made_up(1, "missing", 5.0))
    file.begin_import(10.0)
    summary = write(file, compared("match", began=9.0), compared("match", BY_CARD, 11.0))
    assert (summary.users, summary.totals, summary.importing) == (NOBODY, {}, 10.0)
    file.end_import(20.0)
    summary = write(file, compared("missing", began=19.0), made_up(2, began=20.0))
    assert (summary.users, summary.totals) == ({**NOBODY, "match": 1}, {"match": 1})
    assert (summary.since, summary.imported, summary.importing) == (20.0, 20.0, None)


def test_skipped_lookups_of_an_import_do_not_count(file: ShadowFile) -> None:
    file.begin_import(10.0)
    file.write([], 3, 11.0)
    file.end_import(20.0)
    assert file.summary().totals == {}


def test_import_into_a_backend_that_was_never_compared_makes_no_file(tmp_path: Path) -> None:
    """The service could not write one of another user."""
    file = ShadowFile(tmp_path / "shadow.db", "new")
    file.begin_import(1.0)
    file.end_import(2.0)
    assert not file.path.exists()


def test_file_in_a_folder_that_cannot_be_searched_is_not_missing(file: ShadowFile) -> None:
    """An import that did not mark it would leave comparisons that say nothing any more."""
    file.path.parent.chmod(0)
    is_root = os.geteuid() == 0
    try:
        if is_root:  # who may search any folder
            os.seteuid(65534)
        for action in (file.begin_import, file.end_import):
            with pytest.raises(StartError, match=r"shadow\.db: cannot be used: Permission denied"):
                action(1.0)
    finally:
        if is_root:
            os.seteuid(0)
        file.path.parent.chmod(0o700)


def test_several_processes_write_at_once(file: ShadowFile) -> None:
    program = """
import sys
from pathlib import Path
from time import sleep
from tornado_idv.lookup.comparison import Comparison
from tornado_idv.lookup.shadow_file import Recorded, ShadowFile
from tornado_idv.model import ByNickname, User
path, first = Path(sys.argv[1]), int(sys.argv[2])
file = ShadowFile(path, "new")
for number in range(first, first + 40):
    user = User("Free", str(number), f"user{number}")
    query = ByNickname(user.nickname)
    file.write([Recorded(query, Comparison("match", (), user), 1.0)], 1, 1.0)
    sleep(0.005)  # otherwise one may not have its turn for seconds
"""
    command = [sys.executable, "-c", program, file.path]
    running = [subprocess.Popen([*command, str(first)]) for first in (0, 20, 40)]
    assert [each.wait() for each in running] == [0, 0, 0]
    summary = file.summary()
    assert summary.users["match"] == 80  # the ranges overlap
    assert summary.totals == {"match": 120, "skipped": 120}


def test_process_that_is_killed_while_it_writes_leaves_a_whole_file(file: ShadowFile) -> None:
    """Each transaction writes 100 users: the number of them is that of the comparisons."""
    program = """
import sys
from itertools import count
from pathlib import Path
from tornado_idv.lookup.comparison import Comparison
from tornado_idv.lookup.shadow_file import Recorded, ShadowFile
from tornado_idv.model import ByNickname, User
file = ShadowFile(Path(sys.argv[1]), "new")
for number in count():
    users = [User("Free", "1", f"user{number}-{i}") for i in range(100)]
    rows = [Recorded(ByNickname(u.nickname), Comparison("match", (), u), 1.0) for u in users]
    file.write(rows, 0, 1.0)
"""
    for _ in range(5):
        before = file.summary().totals.get("match", 0)
        process = subprocess.Popen([sys.executable, "-c", program, file.path])
        while file.summary().totals.get("match", 0) < before + 300:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        summary = file.summary()
        # Those of the last process replace the ones of before.
        assert summary.totals["match"] % 100 == 0
        assert summary.users["match"] % 100 == 0
    write(file, compared("missing"))
    assert file.summary().users["missing"] == 1


def damaged(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(sql)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("PRAGMA user_version = 9", "written by another tornado-idv, as version 9; remove it"),
        ("PRAGMA application_id = 1", "no file of a shadow; name another one"),
        ("DROP TABLE comparisons", "cannot be used: no such table: comparisons"),
        ("UPDATE state SET backend = 'old'", "of the shadow old; name another one for new"),
    ],
)
def test_file_of_something_else_is_neither_read_nor_written(
    file: ShadowFile, sql: str, reason: str
) -> None:
    damaged(file.path, sql)
    before = file.path.read_bytes()
    actions = (
        file.summary,
        lambda: file.write([compared("match")], 0, 1.0),
        lambda: file.begin_import(1.0),
    )
    for action in actions:
        with pytest.raises(StartError) as failed:
            action()
        assert str(failed.value) == f"{file.path}: {reason}"
    assert file.path.read_bytes() == before


@pytest.mark.parametrize("content", [b"no database" * 100, None])
def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = ShadowFile(tmp_path / "shadow.db", "new")
    if content is None:
        file.path.mkdir()
    else:
        file.path.write_bytes(content)
    for action in (file.summary, lambda: file.write([], 0, 1.0)):
        with pytest.raises(
            StartError,
            match=r"shadow\.db: (not a regular file|cannot be used: file is not a database)",
        ):
            action()


def test_missing_and_empty_files_are_reported(tmp_path: Path) -> None:
    file = ShadowFile(tmp_path / "shadow.db", "new")
    with pytest.raises(StartError, match="there is no such file"):
        file.summary()
    file.path.touch()
    with pytest.raises(StartError, match="no file of a shadow"):
        file.summary()
    file.write([compared("match")], 0, 1.0)  # as of a process that was killed while it began
    assert file.summary().users["match"] == 1


def test_full_disk_changes_nothing(file: ShadowFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of SQLite stands for the disk; the error is the same."""
    write(file, compared("missing"))
    connect = sqlite3.connect

    def limited(*args: object, **options: object) -> sqlite3.Connection:
        database: sqlite3.Connection = connect(*args, **options)  # type: ignore[call-overload] # as given
        ((pages,),) = database.execute("PRAGMA page_count")
        database.execute(f"PRAGMA max_page_count = {pages}")
        return database

    monkeypatch.setattr("tornado_idv.lookup.shadow_file.sqlite3.connect", limited)
    rows = [made_up(number) for number in range(5000)]
    with pytest.raises(StartError, match=r"shadow\.db: cannot be used: database or disk is full"):
        file.write(rows, 0, 1.0)
    assert file.summary().users == {**NOBODY, "missing": 1}

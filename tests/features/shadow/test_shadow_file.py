"""The file with the comparisons of a shadow: which of them count, and what a reader sees."""

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.processes.permissions import unprivileged
from tornado_idv.errors import StartError
from tornado_idv.features.shadow.file import Contents, Recorded, ShadowFile
from tornado_idv.kit.comparison import Comparison, ComparisonResult
from tornado_idv.model import ByCard, ByNickname, Query, User

ALICE = User("Free", "4000", "alice")
BY_NICKNAME, BY_CARD = ByNickname("alice"), ByCard("4000")
DAY = 86400.0


@pytest.fixture
def file(tmp_path: Path) -> ShadowFile:
    made = ShadowFile(tmp_path / "shadow.db", "new")
    made.write([], 0.0)
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


def write(file: ShadowFile, *comparisons: Recorded, now: float = 10.0) -> Contents:
    file.write(comparisons, now)
    return file.read()


def users(file: ShadowFile) -> dict[str, int]:
    """Return the number of users by result."""
    contents = file.read()
    results = Counter(each.result for each in contents.differing)
    results["match"] = contents.matches
    return {result: count for result, count in results.items() if count}


def made_up(number: int, result: ComparisonResult = "match", began: float = 1.0) -> Recorded:
    user = User("Free", str(number), f"user{number}")
    return compared(result, ByNickname(user.nickname), began, user=user)


def test_user_counts_once_with_the_most_severe_result_of_all_queries(file: ShadowFile) -> None:
    write(file, compared("source_failed"))
    assert users(file) == {}
    results: Sequence[ComparisonResult] = (
        *("match", "differs", "target_failed", "unverified", "extra", "missing"),
    )
    for number, result in enumerate(results):
        write(file, compared(result, ByCard(str(number))))
        assert users(file) == {result: 1}
    write(file, compared("match"), compared("source_failed"))
    assert users(file) == {"missing": 1}


def test_last_result_counts_unless_the_source_failed(file: ShadowFile) -> None:
    results: Sequence[ComparisonResult] = (
        *("match", "unverified", "missing", "target_failed", "differs", "match", "extra"),
    )
    for began, result in enumerate(results, start=1):
        for each in (compared(result, began=began), compared("source_failed", began=began)):
            write(file, each)
            assert users(file) == {result: 1}


def test_users_who_did_not_match_are_due_after_their_age(file: ShadowFile) -> None:
    rows = [made_up(1, "missing", 3.0), made_up(2, "match", 1.0), made_up(3, "target_failed", 2.0)]
    write(file, *rows, compared("unverified", BY_CARD, 9.0, user=None))
    assert {*file.due(10.0, 6.0, 5)} == {"@user3", "@user1"}
    assert {*file.due(10.0, 1.0, 5)} == {"@user3", "@user1"}
    assert {*file.due(10.0, 0.5, 5)} == {"@user3", "@user1", "4000"}
    assert {*file.due(8.0, 6.0, 5)} == {"4000"}
    assert len(file.due(10.0, 0.5, 2)) == 2
    assert len({*(each for _ in range(50) for each in file.due(10.0, 0.5, 1))}) == 3


@pytest.mark.parametrize("given", [{"scope": "other"}, {"is_complete": False}])
def test_another_configuration_and_missing_comparisons_begin_again(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    file = ShadowFile(tmp_path / "shadow.db", "new")
    file.write([compared("match", began=9.0)], 9.0, "one")
    file.write([compared("match", BY_CARD, 9.5)], 9.5, "one")
    assert file.read().totals == {"match": 2}
    rows = [compared("match", BY_CARD, 5.0), made_up(1, began=11.0)]
    file.write(rows, 10.0, **{"scope": "one", **given})
    contents = file.read()
    assert (contents.since, contents.matches, contents.totals) == (10.0, 1, {"match": 1})


def test_clock_that_was_set_back_hides_nothing(file: ShadowFile) -> None:
    write(file, compared("match", began=5000.0), now=5001.0)
    write(file, compared("missing", began=100.0), now=101.0)
    assert users(file) == {"missing": 1}
    write(file, compared("missing", began=5000.0), now=5001.0)
    write(file, compared("match", began=100.0, user=None), now=101.0)
    assert users(file) == {}
    file.discard(5000.0)
    assert write(file, compared("match", began=4990.0), now=4990.0).matches == 0
    contents = write(file, compared("match", began=4000.0), now=4000.0)
    assert (contents.since, contents.matches) == (4000.0, 1)


def test_older_result_of_another_process_does_not_replace_a_newer_one(file: ShadowFile) -> None:
    write(file, compared("missing", began=5.0))
    for user in (ALICE, None):
        write(file, compared("match", began=4.0, user=user))
        assert users(file)["missing"] == 1


def test_not_found_in_both_is_only_in_the_totals(file: ShadowFile) -> None:
    """Also where the query was of a user who has been removed from both since."""
    absent = compared("match", ByNickname("nobody"), user=None)
    contents = write(file, compared("missing"), absent)
    assert (users(file), contents.totals["match"]) == ({"missing": 1}, 1)
    write(file, compared("match", began=2.0, user=None))
    assert users(file) == {}


def test_contents_have_days_totals_and_each_user_once_with_all_fields_and_queries(
    file: ShadowFile,
) -> None:
    contents = write(
        file,
        compared("differs", fields=["plan"]),
        compared("differs", BY_CARD, DAY / 2, fields=["card_number", "plan"]),
        compared("match", ByNickname("nobody"), 2 * DAY, user=None),
        compared("missing", ByNickname("bob"), 3 * DAY, user=made_up(1).comparison.user),
        made_up(2, "target_failed", 5 * DAY),
        made_up(3, "unverified", 6 * DAY),
        made_up(3, "unverified", 7 * DAY),
        compared("source_failed", began=8 * DAY),
    )
    assert [each[1:] for each in contents.differing] == [
        ("missing", [], 3 * DAY, ["@bob"]),
        ("unverified", [], 7 * DAY, ["@user3"]),
        ("target_failed", [], 5 * DAY, ["@user2"]),
        ("differs", ["card_number", "plan"], DAY / 2, ["4000", "@alice"]),
    ]
    assert (contents.since, contents.days) == (0.0, 3)
    counts = {"differs": 2, "match": 1, "missing": 1, "target_failed": 1, "unverified": 2}
    assert contents.totals == {**counts, "source_failed": 1}


def test_only_users_that_are_not_the_same_are_in_the_file_in_full(file: ShadowFile) -> None:
    user = made_up(1).comparison.user
    write(file, compared("match"), compared("missing", ByCard("777000777"), user=user))
    content = file.path.read_bytes()
    assert [text in content for text in (b"777000777", b"alice", b"user1")] == [True, False, False]
    write(file, compared("match", ByCard("777000777"), 2.0, user=user))
    assert b"777000777" not in file.path.read_bytes()
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert list(file.path.parent.iterdir()) == [file.path]
    write(file, *(made_up(number, "missing", 3.0) for number in range(1000)))
    assert b"@user999" in file.path.read_bytes()
    file.discard(4.0)  # which frees pages
    assert b"@user" not in file.path.read_bytes()


def test_hashes_of_two_files_differ(file: ShadowFile, tmp_path: Path) -> None:
    """They cannot be computed without the key, which is in the file."""
    other = ShadowFile(tmp_path / "other.db", "new")
    other.write([], 0.0)
    one, two = (write(each, compared("missing")).differing[0].user for each in (file, other))
    assert re.fullmatch("[0-9a-f]{24}", one)
    assert one != two


def test_file_is_bounded_and_keeps_differences(tmp_path: Path) -> None:
    file = ShadowFile(tmp_path / "shadow.db", "new", max_rows=100)
    file.write([], 0.0)
    write(file, *(made_up(number, "missing") for number in range(10)))
    for number in range(10, 300, 10):
        write(file, *(made_up(each, began=float(number)) for each in range(number, number + 10)))
        assert min(number, 85) < sum(users(file).values()) <= 100
    assert users(file)["missing"] == 10
    write(file, made_up(299, "missing", 300.0))  # one of the latest, which are kept
    assert users(file)["missing"] == 11
    for number in range(1000, 1200, 5):
        write(file, *(made_up(each, "extra", 400.0) for each in range(number, number + 5)))
    assert users(file).keys() == {"extra"}  # the others are older
    assert 85 < users(file)["extra"] <= 100


def test_comparisons_from_before_the_end_of_an_import_do_not_count(file: ShadowFile) -> None:
    write(file, compared("match", began=5.0), made_up(1, "missing", 5.0))
    file.discard(20.0)
    contents = write(file, compared("missing", began=19.0))
    assert (users(file), contents.totals, contents.days) == ({}, {}, 0)
    contents = write(file, made_up(2, began=20.0))
    assert (users(file), contents.totals) == ({"match": 1}, {"match": 1})
    assert contents.since == 20.0


def test_file_in_a_folder_that_cannot_be_searched_is_not_missing(file: ShadowFile) -> None:
    """An import that did not mark it would leave comparisons that say nothing any more."""
    file.path.parent.chmod(0)
    with unprivileged(), pytest.raises(PermissionError):
        file.discard(1.0)
    file.path.parent.chmod(0o700)


def test_several_processes_write_at_once(file: ShadowFile) -> None:
    """Each connection of SQLite has its own lock, also within one process."""

    def write_several(first: int) -> None:
        other = ShadowFile(file.path, "new")
        for number in range(first, first + 20):
            other.write([made_up(number)], 1.0)
            time.sleep(0.005)  # otherwise one may not have its turn for seconds

    with ThreadPoolExecutor() as pool:
        list(pool.map(write_several, (0, 10, 20)))  # the ranges overlap
    contents = file.read()
    assert (contents.matches, contents.totals) == (40, {"match": 60})


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("PRAGMA application_id = 1", "not a shadow file of this version; name another file"),
        ("DROP TABLE comparisons", "cannot be used: "),
        ("UPDATE state SET backend = 'old'", "belongs to the shadow old; name another file for"),
    ],
)
def test_file_of_something_else_is_neither_read_nor_written(
    file: ShadowFile, sql: str, reason: str
) -> None:
    with closing(sqlite3.connect(file.path)) as database:
        database.executescript(sql)
    before = file.path.read_bytes()
    actions = (file.read, lambda: file.write([compared("match")], 1.0), lambda: file.discard(1.0))
    for action in actions:
        with pytest.raises(StartError) as failed:
            action()
        assert str(failed.value).startswith(f"{file.path}: {reason}")
    assert file.path.read_bytes() == before


def test_missing_and_empty_files_are_reported(tmp_path: Path) -> None:
    file = ShadowFile(tmp_path / "shadow.db", "new")
    with pytest.raises(StartError, match="does not exist: no service has compared anything yet"):
        file.read()
    file.path.touch()
    with pytest.raises(StartError, match="not a shadow file"):
        file.read()
    file.write([compared("match")], 1.0)  # as of a process that was killed while it began
    assert file.read().matches == 1


def test_full_disk_changes_nothing(file: ShadowFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of SQLite stands for the disk; the error is the same."""
    write(file, compared("missing"))
    connect = sqlite3.connect

    def limited(*args: object, **options: object) -> sqlite3.Connection:
        database: sqlite3.Connection = connect(*args, **options)  # type: ignore[call-overload] # as given
        ((pages,),) = database.execute("PRAGMA page_count")
        database.execute(f"PRAGMA max_page_count = {pages}")
        return database

    monkeypatch.setattr("tornado_idv.features.shadow.file.sqlite3.connect", limited)
    rows = [made_up(number) for number in range(5000)]
    with pytest.raises(StartError, match=r"shadow\.db: cannot be used: database or disk is full"):
        file.write(rows, 1.0)
    assert users(file) == {"missing": 1}

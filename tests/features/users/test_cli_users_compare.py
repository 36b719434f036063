"""``tornado-idv users compare`` with SQLite files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from idv_sqlite.backend import SqliteBackend
from idv_sqlite.store import SqliteUserStore
from support.databases import sqlite_databases
from support.databases.sqlite_databases import ALICE, BOB
from support.processes.process import Invoke
from tornado_idv import ByNickname, User

Users = Callable[..., Result]
Config = Callable[..., Path]
TABLE = "CREATE TABLE users (nickname TEXT, card_number TEXT, plan TEXT, profile_url TEXT)"


def test_compare_reports_each_difference(users: Users, folder: Path) -> None:
    sqlite_databases.write(folder / "people.db", ALICE, BOB, User("Free", "1", "carl"))
    sqlite_databases.write(folder / "other.db", User("Pro", "2", "alice"), BOB, User("x", "3", "d"))
    done = users("compare", "people", "other", "--json")
    expected = {"differs": ["@alice: card_number, plan"], "missing": ["@carl"], "extra": ["@d"]}
    assert (done.exit_code, json.loads(done.stdout)["users"]) == (1, expected)
    done = users("compare", "people", "other", "--sample", 3)
    assert (done.exit_code, "extra in other: 0" in done.stdout) == (1, True)
    done = users("compare", "other", "demo", "--sample", 5)  # which has another plan
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (User(ALICE.plan, "2", "alice"), "differs"),  # by card it is not found
        (User(ALICE.plan, ALICE.card_number, "bob"), "missing"),  # by card it differs
    ],
)
def test_sample_is_looked_up_by_nickname_and_by_card(
    users: Users, folder: Path, other: User, kind: str
) -> None:
    sqlite_databases.write(folder / "people.db", ALICE)
    sqlite_databases.write(folder / "other.db", other)
    done = users("compare", "people", "other", "--sample", 1, "--json")
    assert (done.exit_code, [*json.loads(done.stdout)["users"]]) == (1, [kind])


def test_sample_is_looked_up_by_nickname_alone_if_the_backend_finds_no_cards(
    users: Users, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_databases.write(folder / "people.db", ALICE)
    sqlite_databases.run(folder / "other.db", TABLE)
    sqlite_databases.insert(folder / "other.db", ALICE, User("Free", ALICE.card_number, "bob"))
    assert users("compare", "people", "other", "--sample", 1).exit_code == 3  # two by card
    monkeypatch.setattr(SqliteBackend, "serves", {ByNickname})
    assert users("compare", "people", "other", "--sample", 1).exit_code == 0


def test_user_without_a_valid_answer_is_unverified_and_the_others_are_compared(
    users: Users, folder: Path
) -> None:
    sqlite_databases.write(folder / "people.db", ALICE, BOB)
    sqlite_databases.write(folder / "other.db", User(ALICE.plan, "x", "alice"), BOB)
    done = users("compare", "people", "other", "--sample", 2)
    shown = "compared: 2 users of people and other\nunverified, lookups in other failed: 1\n"
    assert (done.exit_code, done.stdout.startswith(shown)) == (3, True)
    sqlite_databases.run(folder / "people.db", "UPDATE users SET plan = 'x' WHERE nickname = 'bob'")
    assert users("compare", "people", "other", "--sample", 2).exit_code == 1


def test_derived_profile_url_equals_the_same_one_in_the_table(users: Users, folder: Path) -> None:
    """Responses are the same for both."""
    own = User(ALICE.plan, ALICE.card_number, "alice", "https://profiles.example/m/alice")
    sqlite_databases.write(folder / "people.db", ALICE)
    sqlite_databases.write(folder / "other.db", own)
    assert users("compare", "people", "other").exit_code == 0
    sqlite_databases.run(folder / "other.db", "UPDATE users SET profile_url = 'https://x/a'")
    done = users("compare", "people", "other")
    assert (done.exit_code, "@alice: profile_url" in done.stdout) == (1, True)


@pytest.mark.parametrize("count", [100, 101])
def test_hundred_users_are_listed_and_all_counted(users: Users, folder: Path, count: int) -> None:
    made = [User("Free", str(number), f"user{number:03}") for number in range(count)]
    sqlite_databases.write(folder / "people.db", *made)
    sqlite_databases.write(folder / "other.db")
    lines = users("compare", "people", "other").stdout.splitlines()
    assert f"missing from other: {count}" in lines
    assert ("  @user099" in lines, "  @user100" in lines) == (True, False)
    assert ("  and 1 more" in lines) == (count > 100)


def test_sample_is_chosen_at_random_and_is_the_same_each_time(users: Users, folder: Path) -> None:
    made = [User("Free", str(number), f"user{number:03}") for number in range(100)]
    sqlite_databases.write(folder / "people.db", *made)
    sqlite_databases.write(folder / "other.db")
    samples = []
    for _ in range(2):
        done = users("compare", "people", "other", "--sample", 40, "--json")
        samples.append({*json.loads(done.stdout)["users"]["missing"]})
    assert samples[0] == samples[1]
    for part in (made[:50], made[50:]):
        assert 5 < len({f"@{user.nickname}" for user in part} & samples[0]) < 35


@pytest.mark.parametrize("sample", [[], ["--sample", "1"]], ids=["all", "sample"])
def test_case_of_nicknames_is_no_difference_where_it_is_folded(
    invoke: Invoke, config: Config, folder: Path, sample: list[str]
) -> None:
    sqlite_databases.write(folder / "people.db", User("Free", "1", "Alice"))
    sqlite_databases.write(folder / "other.db", User("Free", "1", "alicE"))
    backends = [f"name: {name}, kind: sqlite, path: {name}.db" for name in ("people", "other")]
    file = config(*backends, more="identifiers: {nickname_case: fold}\n")
    assert invoke("users", "compare", "people", "other", *sample, "-c", file).exit_code == 0
    file = config(*backends)
    assert invoke("users", "compare", "people", "other", *sample, "-c", file).exit_code == 1


def test_two_rows_with_one_nickname_cannot_be_compared(
    users: Users, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_databases.run(folder / "people.db", TABLE)
    sqlite_databases.insert(folder / "people.db", ALICE, User("Free", "2", "alice"))
    sqlite_databases.write(folder / "other.db", ALICE, BOB)
    done = users("compare", "other", "people")
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith("people: two rows have the same nickname")
    monkeypatch.setattr(SqliteUserStore, "records", lambda _: iter([BOB, ALICE]))
    assert "the rows are not sorted" in users("compare", "other", "people").stderr

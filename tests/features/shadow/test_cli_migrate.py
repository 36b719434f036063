"""``tornado-idv migrate``, and how an import marks the comparisons of before it."""

import json
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from idv_sqlite.store import SqliteTransaction
from support.databases import sqlite_databases
from support.databases.sqlite_databases import ALICE, BOB
from support.databases.user_lists import ANY_LIST
from support.processes.process import Invoke
from tornado_idv import Unavailable, User
from tornado_idv.features.shadow.file import Recorded, ShadowFile
from tornado_idv.features.users.staging import Staging
from tornado_idv.kit.comparison import Comparison, ComparisonResult
from tornado_idv.model import ByCard, ByNickname

OLD = "name: old, kind: yaml, path: users.yaml"
NEW = "name: new, kind: sqlite, path: people.db, shadow: {sample: 5%, state: shadow.db}"
OTHER = NEW.replace("new", "b").replace("shadow.db", "b.db")
DAY = 86400.0
CARL, DORA = User("Free", "42000042", "carl"), User("Free", "43000043", "dora")

Run = Callable[..., Result]
Read = Callable[..., dict[str, Any]]


@pytest.fixture
def run(invoke: Invoke, config: Callable[..., Path]) -> Run:
    """Runs a command of ``migrate`` with these backends."""

    def run(*arguments: object, backends: Sequence[str] = (OLD, NEW)) -> Result:
        return invoke("migrate", *arguments, "--config", config(*backends))

    return run


@pytest.fixture
def read(run: Run) -> Read:
    def read(*arguments: object, **options: Any) -> dict[str, Any]:
        done = run(*arguments, "--json", **options)
        record: dict[str, Any] = json.loads(done.stdout)
        assert done.exit_code == int(not record.get("ok", True))
        return record

    return read


@pytest.fixture
def file(folder: Path) -> ShadowFile:
    made = ShadowFile(folder / "shadow.db", "new")
    made.write([], 0.0)
    return made


def compared(
    result: ComparisonResult, user: User = ALICE, *fields: str, began: float = 1.0
) -> Sequence[Recorded]:
    """Return comparisons by nickname and by card."""
    comparison = Comparison(result, fields, user)
    queries = (ByNickname(user.nickname), ByCard(user.card_number))
    return [Recorded(query, comparison, began) for query in queries]


def fill(file: ShadowFile, *rows: Sequence[Recorded], matches: int = 0) -> None:
    others = (compared("match", User("Free", f"7{i}", f"user{i}")) for i in range(matches))
    file.write([each for row in (*others, *rows) for each in row], time.time())


def test_status_counts_users_and_lookups(run: Run, read: Read, file: ShadowFile) -> None:
    fill(
        file,
        compared("differs", ALICE, "plan"),
        compared("differs", BOB, "plan", "profile_url", began=3 * DAY),
        compared("missing", CARL),
        compared("unverified", DORA),
        compared("target_failed", User("Free", "5", "emil")),
        matches=10,
    )
    record = read("status")
    assert record.pop("written") > "2026"
    assert record.pop("problem") is None
    results = {"missing": 1, "extra": 0, "unverified": 1, "target_failed": 1, "differs": 2}
    totals = {"match": 20, "differs": 4, "missing": 2, "unverified": 2, "target_failed": 2}
    compared_users = {"days": 2, "users": 13, "match": 10, "fields": {"plan": 2, "profile_url": 1}}
    since = {"backend": "new", "since": "1970-01-01T00:00:00.000Z"}
    assert record == {**since, **compared_users, **results, "totals": totals}
    expected = """\
new: compared since 1970-01-01T00:00:00.000Z
users: 13, on 2 days
  missing: 1
  extra: 0
  unverified: 1
  target_failed: 1
  differs: 2
    plan: 2
    profile_url: 1
  match: 10
lookups:
  differs: 4
  match: 20
  missing: 2
  target_failed: 2
  unverified: 2
"""
    assert run("status", "new").stdout == expected


def test_report_shows_nicknames_and_cards_only_with_reveal(
    run: Run, read: Read, file: ShadowFile
) -> None:
    fill(file, compared("differs", ALICE, "plan"), compared("extra", CARL), matches=3)
    for done in (run("report"), run("report", "--json")):
        for each in (ALICE, CARL):
            assert each.nickname not in done.stdout
            assert each.card_number not in done.stdout
    users = read("report")["users"]
    shown = [(each["result"], each["fields"]) for each in users]
    assert shown == [("extra", []), ("differs", ["plan"])]
    assert all(re.fullmatch("[0-9a-f]{24}", each["user"]) for each in users)
    assert {*users[0]} == {"user", "result", "fields", "compared"}
    queries = [each["queries"] for each in read("report", "--reveal")["users"]]
    assert queries == [["42000042", "@carl"], [ALICE.card_number, "@alice"]]
    assert run("report", "new", "--reveal").stdout == (
        "1970-01-01T00:00:01.000Z  extra       42000042 @carl\n"
        f"1970-01-01T00:00:01.000Z  differs     {ALICE.card_number} @alice: plan\n"
    )


def test_check_passes_with_enough_users_who_are_the_same(
    run: Run, read: Read, file: ShadowFile
) -> None:
    fill(file, compared("target_failed", DORA), compared("unverified", CARL), matches=999)
    few, *others = read("check")["blockers"]
    assert others == ["1 user unverified in new", "1 user target_failed in new"]
    assert few == "999 users compared since 1970-01-01T00:00:00.000Z; --min-users is 1000"
    done = run("check")
    assert (done.exit_code, done.stdout.splitlines()) == (1, [few, *others])
    fill(file, compared("match", DORA), compared("match", CARL))
    assert read("check")["blockers"] == []
    done = run("check")
    assert (done.exit_code, done.stdout) == (0, "no blocker: 1,001 users compared\n")
    assert run("report").stdout == "none\n"
    assert read("report") == {"backend": "new", "users": []}


def test_only_accepted_fields_may_differ(read: Read, file: ShadowFile) -> None:
    others = compared("differs", BOB, "plan", "profile_url")
    fill(file, compared("differs", ALICE, "plan"), others, matches=10)
    given = ["check", "--min-users", 1, "--accept", "plan"]
    assert read(*given)["blockers"] == ["1 user with another profile_url"]
    assert read(*given, "--accept", "profile_url")["ok"] is True
    # A user whose lookups differ in other fields differs in all of them.
    card = Recorded(ByCard(ALICE.card_number), Comparison("differs", ("card_number",), ALICE), 2.0)
    file.write([card], time.time())
    given = ["check", "--min-users", 1, "--accept", "profile_url"]
    assert read(*given, "--accept", "card_number")["blockers"] == ["2 users with another plan"]
    assert read(*given, "--accept", "plan")["blockers"] == ["1 user with another card_number"]
    assert "1 user with another card_number and plan" in read(*given)["blockers"]


def test_fields_of_a_user_who_is_missing_by_card_do_not_count(read: Read, file: ShadowFile) -> None:
    (by_nickname, _), (_, by_card) = compared("differs", ALICE, "plan"), compared("missing")
    fill(file, [by_nickname, by_card], compared("differs", BOB, "profile_url"))
    assert read("status")["fields"] == {"profile_url": 1}
    given = ["check", "--min-users", 1, "--accept", "profile_url"]
    assert read(*given)["blockers"] == ["1 user missing in new"]


def test_service_that_compares_or_writes_nothing_is_a_blocker(read: Read, file: ShadowFile) -> None:
    """It is down, or the disk is full: what the last lookups found is not in the file."""
    fill(file, matches=3)
    for moment in (time.time() + 90, time.time() - 90):
        file.write([], moment)
        (text,) = read("check", "--min-users", 1)["blockers"]
        assert re.fullmatch(
            r"the service has not written the file since \S+Z: see tornado-idv health", text
        )
    ShadowFile(file.path, "new").write([], time.time() - 95, problem="of a process that has ended")
    file.write([], time.time() - 30)
    assert read("check", "--min-users", 1)["ok"] is True
    file.write([], time.time(), problem="not open yet")
    ShadowFile(file.path, "new").write([], time.time())  # by another worker
    expected = ["the service compares nothing: not open yet"]
    assert read("check", "--min-users", 1)["blockers"] == expected


@pytest.mark.parametrize(
    ("backends", "argument", "code", "error"),
    [
        ((OLD,), "", 2, "there are: none; add shadow: {sample: 5%, state: shadow.db}"),
        ((OLD, NEW), "old", 2, "name a backend with shadow.state; there are: new"),
        ((OLD, NEW.replace(", state: shadow.db", "")), "", 2, "there are: none"),
        ((OLD, NEW, OTHER), "", 2, "there are: new, b"),
        ((OLD, NEW, OTHER), "new", 3, "shadow.db: does not exist: no service has compared"),
    ],
)
def test_one_shadow_with_a_file_is_named(
    run: Run, backends: Sequence[str], argument: str, code: int, error: str
) -> None:
    done = run("status", *argument.split(), backends=backends)
    assert (done.exit_code, done.stdout) == (code, "")
    assert error in done.stderr.replace("\n", " ")


@pytest.fixture
def import_list(invoke: Invoke, config: Callable[..., Path], folder: Path) -> Run:
    """Imports a list of one user into the shadow."""
    sqlite_databases.write(folder / "people.db", ALICE)
    source = folder / "list.csv"
    source.write_text("nickname,card_number,plan\nbob,5000,Free\n")

    def run(*options: str, shadow: str = NEW) -> Result:
        arguments = ("users", "import", *ANY_LIST, source, "--to", "new", *options)
        return invoke(*arguments, "--config", config(OLD, shadow))

    return run


def nicknames(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "people.db")) as database:
        return [nickname for (nickname,) in database.execute("SELECT nickname FROM users")]


def test_import_that_does_not_reach_its_commit_leaves_the_comparisons(
    import_list: Run, read: Read, file: ShadowFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(file, matches=5)
    assert import_list("--dry-run").exit_code == 0
    assert import_list("--expect-rows", "2").exit_code == 1
    errors: list[BaseException] = [Unavailable("gone"), SystemExit(143)]

    def failing(*_: object) -> None:
        raise errors.pop()

    monkeypatch.setattr(Staging, "apply", failing)
    for code in (143, 3):
        assert import_list().exit_code == code
    assert (nicknames(file.path.parent), read("status")["users"]) == (["alice"], 5)


@pytest.mark.parametrize("error", [None, Unavailable("whether users were changed is not known")])
def test_comparisons_from_before_and_during_a_commit_do_not_count(
    import_list: Run,
    read: Read,
    file: ShadowFile,
    monkeypatch: pytest.MonkeyPatch,
    error: Unavailable | None,
) -> None:
    """Also if it is not known whether users were changed."""
    commit = SqliteTransaction.commit

    def committed(transaction: SqliteTransaction) -> None:
        assert read("status")["users"] == 0  # if the process ends now
        fill(file, compared("match", CARL, began=time.time()))
        assert read("status")["users"] == 1
        commit(transaction)
        if error:
            raise error

    fill(file, compared("missing", CARL), matches=5)
    before = time.time()
    monkeypatch.setattr(SqliteTransaction, "commit", committed)
    assert import_list().exit_code == (3 if error else 0)
    assert nicknames(file.path.parent) == ["bob"]
    fill(file, compared("match", CARL, began=before))  # it may have been of the table of before
    record = read("status")
    assert (record["users"], record["totals"]) == (0, {})
    message = f"0 users compared since {record['since']}; --min-users is 1"
    assert read("check", "--min-users", 1)["blockers"] == [message]
    fill(file, compared("match", CARL, began=time.time()))
    assert read("check", "--min-users", 1)["ok"] is True


def test_nothing_is_imported_where_that_cannot_be_marked(
    import_list: Run, file: ShadowFile
) -> None:
    file.path.write_text("something else")
    done = import_list()
    assert (done.exit_code, nicknames(file.path.parent)) == (3, ["alice"])
    assert "shadow.db: cannot be used: " in done.stderr


def test_import_is_done_where_its_end_cannot_be_marked(
    import_list: Run, file: ShadowFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = SqliteTransaction.commit

    def committed(transaction: SqliteTransaction) -> None:
        file.path.unlink(missing_ok=True)
        file.path.symlink_to(target)
        commit(transaction)

    monkeypatch.setattr(SqliteTransaction, "commit", committed)
    (other := file.path.with_name("other")).write_text("something else")
    for target in (other, file.path):  # noqa: B007 - of the link, which the last makes a loop
        assert (import_list().exit_code, nicknames(file.path.parent)) == (0, ["bob"])
        file.path.unlink()


def test_import_into_a_backend_that_was_not_compared_yet(import_list: Run, folder: Path) -> None:
    assert import_list().exit_code == 0
    assert not (folder / "shadow.db").exists()
    assert import_list(shadow=NEW.replace(", state: shadow.db", "")).exit_code == 0

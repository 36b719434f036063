"""``tornado-idv reconcile``: no account is listed whose user exists, whatever happens."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import Result

from support.processes.permissions import public_directory, unprivileged
from support.processes.process import Invoke
from tornado_idv.client import ClientError, InvalidKey, MissingScope, Undetermined, Unexpected, User
from tornado_idv.client import Result as FoundResult
from tornado_idv.double import IdentityService
from tornado_idv.features.reconcile.state import State, locked
from tornado_idv.kit.files import replaced_file

DAY = 86400.0
BARE = ("--by", "nickname")
HEADER = "id,nickname,note\n"
ALICE = '1,@alice,"two\nlines"\n'
BOB = "2,@bob,\n"
CAROL = "3,@carol,x\n"
Reconcile = Callable[..., Result]
Now = Callable[[float], None]


@pytest.fixture(scope="module")
def started() -> Iterator[IdentityService]:
    with IdentityService.start() as double:
        yield double


@pytest.fixture
def double(started: IdentityService) -> IdentityService:
    """A service that knows @alice and @canary."""
    started.reset()
    started.add(User("Free", "4001", "@alice"))
    started.add(User("Free", "90001", "@canary"))
    return started


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock to so many days after the first run."""
    first = time.time()

    def to(days: float) -> None:
        for module in ("command", "run"):
            name = f"tornado_idv.features.reconcile.{module}.time"
            monkeypatch.setattr(name, lambda: first + days * DAY)
        monkeypatch.setattr(
            "tornado_idv.features.reconcile.run.parsedate_to_datetime",
            lambda date: parsedate_to_datetime(date) + timedelta(days),
        )

    to(0)
    return to


@pytest.fixture
def reconcile(
    invoke: Invoke, double: IdentityService, tmp_path: Path, now: Now
) -> Callable[..., Result]:
    """Run the command in a folder with gone.json and gone.csv, on a list of accounts."""

    def run(
        accounts: str, *options: str, name: str = "accounts.csv", key: str = double.key
    ) -> Result:
        path = tmp_path / name
        path.write_text(accounts, encoding="utf-8", errors="surrogateescape")
        (tmp_path / "key").write_text(f"{key}\n", encoding="utf-8")
        return invoke(
            *("reconcile", path, "--url", double.url, "--key-file", tmp_path / "key"),
            *("--state", tmp_path / "gone.json", "--output", tmp_path / "gone.csv", "--json"),
            *("--column", "nickname", "--max-gone", "100%", "--retries", "0"),
            *("--confirm-after", "0s", "--min-runs", "1", "--max-invalid", "100%", *options),
        )

    return run


def rows(folder: Path) -> str:
    return (folder / "gone.csv").read_text(encoding="utf-8").removeprefix(HEADER)


def counts(result: Result) -> dict[str, int]:
    record: dict[str, Any] = json.loads(result.stdout)
    names = ("accounts", "found", "gone", "invalid", "undetermined", "deletable")
    return {name: record[name] for name in names if record[name]}


def test_account_is_listed_once_it_was_gone_for_the_grace(
    reconcile: Reconcile, now: Now, tmp_path: Path
) -> None:
    (tmp_path / "gone.csv").touch(0o640)
    ends = set()
    for day, listed in ((0, ""), (1, ""), (2.9, ""), (3, BOB + CAROL), (9, BOB + CAROL)):
        now(day)
        result = reconcile(HEADER + ALICE + BOB + CAROL)
        assert (result.exit_code, rows(tmp_path)) == (0, listed), result.output
        waiting = json.loads(result.stdout)["waiting"]
        assert [each["identifier"] for each in waiting] == ([] if listed else ["@bob", "@carol"])
        assert {each["runs"] for each in waiting} <= {min(day + 1, 3)}
        ends |= {each["deletable_from"] for each in waiting}
    assert len(ends) == 1
    assert counts(result) == {"accounts": 3, "found": 1, "gone": 2, "deletable": 2}
    assert (tmp_path / "gone.csv").stat().st_mode & 0o777 == 0o640  # as before


@pytest.mark.parametrize(
    "between", ["found", "found in a refused run", "undetermined", "not in the list"]
)
def test_grace_begins_again_for_an_account_that_was_not_gone_in_between(
    reconcile: Reconcile, now: Now, double: IdentityService, tmp_path: Path, between: str
) -> None:
    others = "".join(f"{number},@user{number},\n" for number in range(200))
    assert reconcile(HEADER + BOB + others).exit_code == 0
    now(2)
    if "found" in between:
        double.add(User("Free", "4002", "@bob"))
    elif between == "undetermined":
        double.fail("@bob", status=503)
    accounts = others if between == "not in the list" else BOB + others
    is_refused = "refused" in between
    options = ("--max-gone", "0") if is_refused else ()
    assert reconcile(HEADER + accounts, *options).exit_code == is_refused
    double.reset()
    now(4)
    assert reconcile(HEADER + BOB + others).exit_code == 0
    assert BOB not in rows(tmp_path)
    now(7)
    assert reconcile(HEADER + BOB + others).exit_code == 0
    assert BOB in rows(tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        ({"status": 503}, (), 3, "1 of 3 accounts could not be determined"),
        ({"status": 503}, ("--max-undetermined", "50%"), 0, ""),
        ({"reset": True}, (), 3, "3 of 3 accounts could not be determined"),
        ({"cut": True}, (), 3, "not from this service"),
        ({"status": 429, "times": 2}, ("--deadline", "500ms"), 3, "1 of 3 accounts could not"),
        (None, ("--max-gone", "60%"), 1, "2 of 3 accounts are gone, more than --max-gone 60%"),
        (None, ("--max-gone", "2"), 0, ""),
        (None, ("--must-exist", "90001"), 0, ""),
        (None, ("--must-exist", "@lost"), 1, "--must-exist: @lost is not found"),
        (None, ("--must-exist", "@"), 3, "--must-exist: @: "),
        (None, ("--grace", "3"), 2, "not a duration"),
        (None, ("--max-gone", "x"), 2, "neither a number nor a percentage"),
        (None, ("--column", "note"), 1, "its column is nickname"),
        (None, ("--url", "ftp://x"), 2, "url must be like"),
    ],
)
def test_exit_codes_and_files_that_stay(
    reconcile: Reconcile,
    now: Now,
    double: IdentityService,
    tmp_path: Path,
    case: tuple[dict[str, Any] | None, tuple[str, ...], int, str],
) -> None:
    fault, options, code, text = case
    accounts = HEADER + ALICE + BOB + CAROL
    assert reconcile(accounts).exit_code == 0
    now(4)
    before = [(tmp_path / name).read_bytes() for name in ("gone.json", "gone.csv")]
    if fault is not None:
        double.fail("@bob", **fault)
    result = reconcile(accounts, *options)
    after = [(tmp_path / name).read_bytes() for name in ("gone.json", "gone.csv")]
    assert result.exit_code == code, result.output
    assert text in result.output
    assert (before == after) is (code != 0)
    assert (CAROL in rows(tmp_path)) is (code == 0)


@pytest.mark.parametrize(
    ("key", "code", "reason"),
    [
        ("unknown-key", 3, "key"),
        (None, 2, "No such file"),
        (b"", 2, "key"),
        (b"\xff", 2, "not text"),
        (b"a b", 2, "one token"),
    ],
)
def test_key_that_is_not_valid(
    reconcile: Reconcile, tmp_path: Path, key: str | bytes | None, code: int, reason: str
) -> None:
    if isinstance(key, str):
        result = reconcile(HEADER + BOB, key=key)
    else:
        if key is not None:
            (tmp_path / "other").write_bytes(key)
        result = reconcile(HEADER + BOB, "--key-file", str(tmp_path / "other"))
    assert (result.exit_code, reason in result.output) == (code, True)


def test_state_of_another_list_or_no_state(reconcile: Reconcile, tmp_path: Path) -> None:
    first = HEADER + "".join(f"{number},@a{number},\n" for number in range(200))
    assert reconcile(first, "--max-gone", "100%").exit_code == 0
    assert len(json.loads((tmp_path / "gone.json").read_bytes())["sample"]) == 100
    half = HEADER + "".join(f"{number},@a{number},\n" for number in range(190))
    assert reconcile(half, "--max-gone", "100%").exit_code == 0
    other = HEADER + "".join(f"{line},@{'ab'[line > 60]}{line},\n" for line in range(200))
    result = reconcile(other, "--max-gone", "100%")
    assert (result.exit_code, "another list" in result.output) == (1, True)
    assert reconcile("@a1\n", "--column", "x", name="accounts.txt").exit_code == 1
    result = reconcile(first, "--state", str(tmp_path))
    assert (result.exit_code, "cannot be read: Is a directory" in result.output) == (2, True)
    state = '{"version": 1, "column": "nickname", "gone": %s, "sample": []}'
    gone = ("[]", '{"@a1": ["x", 1]}', '{"@a1": ["0001-01-01T00:00:00", 1]}', '{"@a1": [5, 1]}')
    others = ("", "{}", "[]", state.replace("1", "9") % "{}")
    for text in (*others, *(state % each for each in gone)):
        (tmp_path / "gone.json").write_text(text, encoding="utf-8")
        result = reconcile(first)
        assert (result.exit_code, "not a state file of reconcile" in result.output) == (1, True)
        assert (tmp_path / "gone.json").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "case",
    [
        ("a.jsonl", '{"n": 1, "nickname": "@bob"}\n{"nickname": "@alice"}', (), "{0}\n"),
        ("a.csv", 'nickname;x\n@alice;1\n\n@bob;"2"', ("--delimiter", ";"), "{0}\n{3}\n"),
        ("a.csv", "\ufeffnickname\r\nbob\r\n@alice\r\n", BARE, "nickname\r\nbob\r\n"),
        ("a.csv", "nickname\rbob\r@alice\r", BARE, "nickname\rbob\r"),
        ("a.csv", "card,nickname\n1,4001\n2,0042\n", ("--by", "card"), "{0}\n{2}\n"),
    ],
)
def test_formats_keep_rows_as_they_are(
    reconcile: Reconcile, tmp_path: Path, case: tuple[str, str, tuple[str, ...], str]
) -> None:
    name, accounts, options, listed = case
    result = reconcile(accounts, "--grace", "0s", *options, name=name)
    assert result.exit_code == 0, result.output
    expected = listed.format(*accounts.split("\n"))
    assert (tmp_path / "gone.csv").read_bytes().decode() == expected


@pytest.mark.parametrize(
    ("name", "accounts", "line", "message"),
    [
        ("a.csv", "nickname,x\n@a,1\n@b\n", 3, "1 fields, and the header has 2"),
        ("a.csv", "x,nickname\n1,@a\n2,5,@b\n", 3, "3 fields, and the header has 2"),
        ("a.csv", 'nickname,x\n"@a" b,1\n', 2, "not CSV"),
        ("a.csv", "name,x\n", 1, "the header must have nickname once; it has name, x"),
        ("a.csv", "nickname,x\n@a,1\n@b,\udcff\n", 3, "not UTF-8"),
        ("a.csv", "", 1, "the header must have nickname once"),
        ("a.csv", "nickname,nickname\n", 1, "the header must have nickname once"),
        ("a.csv", "x,nickname\n1,@alice\n2,@bo", 3, "ends within this row"),
        ("a.csv", 'x,nickname\n1,"@alice\n2,@bob\n', 2, "not CSV"),
        ("a.jsonl", '{"nickname": "@a"}\n{"nickname": 17}\n', 2, "a string nickname"),
        ("a.jsonl", '{"nickname": "@a"}\n{"nick', 2, "not a JSON document"),
        ("a.jsonl", '{"nickname": "@a"}\n["@b"]\n', 2, "must be an object"),
    ],
)
def test_row_of_another_form_is_named(
    reconcile: Reconcile, name: str, accounts: str, line: int, message: str
) -> None:
    result = reconcile(accounts, name=name)
    (problem,) = json.loads(result.stdout)["problems"]
    assert (result.exit_code, Path(problem["file"]).name, problem["line"]) == (2, name, line)
    assert message in problem["message"]


@pytest.mark.parametrize("statuses", [(None, 200), (200, None), (None, 200, None), (None, 503)])
def test_account_with_two_rows_is_gone_in_both_or_waits(
    reconcile: Reconcile,
    now: Now,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    statuses: tuple[int | None, ...],
) -> None:
    """A user who is there, or not determined, in one row of a run begins again."""
    users = {200: User("Free", "4002", "@bob")}
    errors = {503: Undetermined("status 503", 503)}

    def find_many(_: object, identifiers: Iterable[str]) -> Iterator[FoundResult]:
        answers = iter(statuses)
        for each in identifiers:
            status = next(answers) if each == "@bob" else 200
            yield FoundResult(each, users.get(status or 0), errors.get(status or 0), degraded=False)

    accounts = HEADER + ALICE + BOB * len(statuses)
    assert reconcile(HEADER + BOB + ALICE).exit_code == 0
    now(2)
    monkeypatch.setattr("tornado_idv.client.Client.find_many", find_many)
    for grace in ("1d", "0s"):
        result = reconcile(accounts, "--grace", grace, "--max-undetermined", "1")
        assert (result.exit_code, rows(tmp_path)) == (0, "")
    monkeypatch.undo()


@pytest.mark.parametrize("same", ["--state", "--output", "--key-file"])
def test_files_must_be_different(reconcile: Reconcile, tmp_path: Path, same: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "accounts.csv")
    result = reconcile(HEADER + BOB, same, str(tmp_path / "link"), "--grace", "0s")
    assert (result.exit_code, "must be different files" in result.output) == (2, True)
    assert (tmp_path / "accounts.csv").read_text(encoding="utf-8") == HEADER + BOB


@pytest.mark.parametrize("name", ["--state", "--output"])
def test_no_file_is_written_if_one_fails(reconcile: Reconcile, tmp_path: Path, name: str) -> None:
    result = reconcile(HEADER + BOB, name, str(tmp_path / "missing" / "file"))
    assert (result.exit_code, "cannot be written" in result.output) == (2, True)
    written = {each.name for each in tmp_path.iterdir()} - {".gone.json.lock"}
    assert written == {"accounts.csv", "key"}


def test_interrupted_run_leaves_the_old_state(
    reconcile: Reconcile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: State, file: IO[str]) -> None:
        file.write("{")
        file.flush()
        raise KeyboardInterrupt

    assert reconcile(HEADER + BOB).exit_code == 0
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    monkeypatch.setattr(State, "write", interrupted)
    assert reconcile(HEADER + BOB).exit_code == 130
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


@pytest.mark.parametrize("header", [HEADER, "id,\x1b]0;title\a\n"])
def test_control_characters_in_errors_are_escaped(reconcile: Reconcile, header: str) -> None:
    """A terminal would obey them, and a user of the application may have chosen the name."""
    result = reconcile(f"{header}1,\x1b]0;title\a,\n", "--max-invalid", "0")
    message = json.loads(result.stdout)["problems"][0]["message"]
    assert (result.exit_code > 0, r"\x1b]0;title\x07" in message) == (True, True)


def test_absence_from_the_future_begins_again(reconcile: Reconcile, tmp_path: Path) -> None:
    assert reconcile(HEADER + BOB).exit_code == 0
    state = json.loads((tmp_path / "gone.json").read_bytes())
    state["gone"]["@bob"] = ["2999-01-01T00:00:00Z", 1]
    (tmp_path / "gone.json").write_text(json.dumps(state), encoding="utf-8")
    assert (reconcile(HEADER + BOB).exit_code, rows(tmp_path)) == (0, "")
    assert "2999-01" not in (tmp_path / "gone.json").read_text(encoding="utf-8")


def test_grace_of_a_clock_that_was_wrong_once_is_not_over(
    reconcile: Reconcile, now: Now, tmp_path: Path
) -> None:
    """It was behind, and the service has the same clock."""
    for days, listed in ((-9, ""), (0, ""), (1, BOB)):
        now(days)
        result = reconcile(HEADER + BOB, "--min-runs", "3")
        assert (result.exit_code, rows(tmp_path)) == (0, listed)


@pytest.mark.parametrize(("seconds", "code"), [(-70, 3), (-40, 0), (40, 0), (70, 3)])
def test_run_with_another_clock_than_the_service_is_refused(
    reconcile: Reconcile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float, code: int
) -> None:
    assert reconcile(HEADER + BOB).exit_code == 0
    state = (tmp_path / "gone.json").read_bytes()
    there = time.time() + seconds
    for module in ("command", "run"):
        monkeypatch.setattr(f"tornado_idv.features.reconcile.{module}.time", lambda: there)
    result = reconcile(HEADER + BOB + CAROL)
    assert result.exit_code == code
    assert ("clocks of this machine and of the service differ" in result.output) is (code == 3)
    assert ((tmp_path / "gone.json").read_bytes() == state) is (code == 3)
    name = "tornado_idv.features.reconcile.run.parsedate_to_datetime"
    monkeypatch.setattr(name, lambda _: parsedate_to_datetime("today"))
    assert reconcile(HEADER + BOB + CAROL).exit_code == 0  # the Date of a proxy is not one


def test_run_beside_another_with_the_same_state_is_refused(
    reconcile: Reconcile, tmp_path: Path
) -> None:
    with locked(tmp_path / "gone.json"):
        result = reconcile(HEADER + BOB)
    assert (result.exit_code, "in use by another run" in result.output) == (3, True)
    assert reconcile(HEADER + BOB).exit_code == 0


BUSY = "8,@busy,\n"
INVALID = "".join(f"{line},{line}@example.com,\n" for line in range(9))


@pytest.mark.parametrize(
    ("accounts", "options", "code", "text"),
    [
        (BOB + INVALID, ("--max-gone", "50%", "--max-invalid", "90%"), 1, "1 of 1 accounts are"),
        (ALICE + BOB + BUSY, ("--max-gone", "40%", "--max-undetermined", "1"), 1, "1 of 2"),
        (BOB + INVALID, (), 1, "9 of 10 identifiers are not valid, more than --max-invalid 1%"),
        (INVALID, ("--max-invalid", "8"), 1, "add --by nickname if"),
        ("1,@a e+b,\n", (), 1, "is this the right column?"),
        ("1,40x,\n", ("--by", "card"), 1, "is this the right column?"),
        ("1,4.00012E+15,\n", ("--by", "card"), 1, "a spreadsheet has rounded card numbers"),
        ("1,4001,\n2,77,\n", ("--by", "card", "--max-gone", "0"), 1, "were leading zeros lost?"),
        ("1,4001,\n2,90001,\n3,7777,\n", ("--by", "card", "--max-gone", "0"), 1, "really gone"),
        ("2,77,\n", ("--by", "card", "--max-gone", "0"), 1, "really gone"),
        (ALICE + "2,@bo,\n", ("--max-gone", "0"), 1, "really gone"),
        (ALICE + BUSY + INVALID, ("--max-invalid", "9", "--max-undetermined", "10%"), 3, "1 of 2"),
    ],
)
def test_bounds_are_of_the_accounts_that_they_are_about(
    reconcile: Reconcile,
    double: IdentityService,
    tmp_path: Path,
    accounts: str,
    options: tuple[str, ...],
    *,
    code: int,
    text: str,
) -> None:
    double.fail("@busy", status=503)
    result = reconcile(HEADER + accounts, *("--grace", "0s", "--max-invalid", "1%"), *options)
    assert (result.exit_code, text in result.output) == (code, True), result.output
    assert not (tmp_path / "gone.json").exists()  # it would be bound to this column


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give the file another group")
def test_output_that_cannot_keep_its_group_is_not_shown_to_another_group() -> None:
    with public_directory() as folder:
        folder.chmod(0o777)
        output = folder / "gone.csv"
        output.touch()
        output.chmod(0o640)
        os.chown(output, 4711, 12345)
        with replaced_file(output, keeps_rights=True):
            pass
        kept = output.stat()
        with unprivileged(), replaced_file(output, keeps_rights=True):
            pass
        status = output.stat()
    assert (kept.st_uid, kept.st_gid, kept.st_mode & 0o777) == (4711, 12345, 0o640)
    assert (status.st_gid == 12345, status.st_mode & 0o777) == (False, 0o600)


def test_invalid_identifiers_are_listed_and_not_gone(reconcile: Reconcile, tmp_path: Path) -> None:
    result = reconcile(HEADER + ALICE + "7,bob,\n8,,\n9,@a b,\n", "--grace", "0s")
    record = json.loads(result.stdout)
    assert counts(result) == {"accounts": 4, "found": 1, "invalid": 3}
    assert [each["line"] for each in record["invalid_identifiers"]] == [4, 5, 6]
    assert rows(tmp_path) == ""
    assert counts(reconcile('{"nickname": "\\ud800"}\n', name="a.jsonl"))["invalid"] == 1


def test_undetermined_accounts_are_asked_again(
    reconcile: Reconcile, double: IdentityService, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("tornado_idv.features.reconcile.run.sleep", pauses.append)
    double.fail("@bob", status=503, times=2)
    result = reconcile(HEADER + BOB + ALICE, "--retries", "5")
    assert (result.exit_code, counts(result)) == (0, {"accounts": 2, "found": 1, "gone": 1})
    assert pauses == [2, 8]


@pytest.mark.parametrize(
    ("meanwhile", "code", "listed"),
    [
        ("nothing", 0, BOB + CAROL),
        ("bob is back", 0, CAROL),
        ("an outage", 3, None),
        ("a short outage", 0, CAROL + BOB),
        ("the canary is gone", 1, None),
    ],
)
def test_users_are_looked_up_once_more_before_their_accounts_are_listed(
    reconcile: Reconcile,
    double: IdentityService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    meanwhile: str,
    code: int,
    listed: str | None,
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if seconds != 40:
            return
        if meanwhile == "bob is back":
            double.add(User("Free", "4002", "@bob"))
        elif "outage" in meanwhile:
            double.fail(status=503, times=1 if "short" in meanwhile else None)
        elif meanwhile == "the canary is gone":
            double.reset()
            double.add(User("Free", "4001", "@alice"))

    monkeypatch.setattr("tornado_idv.features.reconcile.run.sleep", pause)
    double.fail("@busy", status=503)
    accounts = HEADER + BOB + ALICE + CAROL + BUSY
    options = ["--grace", "0s", "--confirm-after", "40s", "--retries", "1"]
    options += ["--max-undetermined", "1"]
    options += ["--must-exist", "@canary"] if "canary" in meanwhile else []
    assert (reconcile(HEADER + ALICE, *options).exit_code, pauses) == (0, [])  # no one is gone
    (tmp_path / "gone.json").unlink()
    (tmp_path / "gone.csv").unlink()
    result = reconcile(accounts, *options)
    assert (result.exit_code, pauses) == (code, [2.0, 40.0] + [2.0] * ("outage" in meanwhile))
    assert (rows(tmp_path) if (tmp_path / "gone.csv").exists() else None) == listed
    gone = {"an outage": 0, "bob is back": 1}.get(meanwhile, 2)
    assert counts(result).get("gone", 0) == gone
    assert counts(result)["undetermined"] == (3 if meanwhile == "an outage" else 1)


GONE = (None, False)  # no error, and no degraded service
DOWN = (Undetermined("status 503", 503), None)
STRANGE = (Unexpected("not of this service"), None)
REVOKED = (InvalidKey("the key is not valid"), None)
UNSCOPED = (MissingScope("the key lacks the scope"), None)


@pytest.mark.parametrize(
    ("results", "rounds", "code", "text"),
    [
        ([GONE, GONE], 0, 0, ""),
        ([DOWN] * 999 + [GONE] + [DOWN] * 999, 2, 0, ""),
        ([DOWN] * 1000, 1, 3, "1,000 accounts in a row"),
        ([DOWN], 0, 3, "1 of 1 accounts could not be determined"),
        ([GONE, STRANGE, GONE], 0, 0, ""),
        ([STRANGE, GONE], 0, 3, "not of this service"),
        ([GONE, REVOKED, GONE], 0, 3, "the key is not valid"),
        ([GONE, UNSCOPED, GONE], 0, 3, "the key lacks the scope"),
        ([(None, True), GONE], 0, 3, "failed within the last ten minutes"),
        ([GONE, (None, None)], 0, 3, "older than version 1.0"),
    ],
)
def test_results_that_end_a_run(
    reconcile: Reconcile,
    monkeypatch: pytest.MonkeyPatch,
    *,
    results: list[tuple[ClientError | None, bool | None]],
    rounds: int,
    code: int,
    text: str,
) -> None:
    def find_many(_: object, identifiers: Iterable[str]) -> Iterator[FoundResult]:
        for each, (error, degraded) in zip(identifiers, results, strict=True):
            yield FoundResult(each, None, error, degraded)

    pauses: list[float] = []
    monkeypatch.setattr("tornado_idv.features.reconcile.run.sleep", pauses.append)
    monkeypatch.setattr("tornado_idv.client.Client.find_many", find_many)
    accounts = "".join(f"{number},@u{number},\n" for number in range(len(results)))
    result = reconcile(HEADER + accounts, "--max-undetermined", "100%", "--grace", "0s")
    assert (result.exit_code, text in result.output) == (code, True)
    assert pauses == [*range(1, 10)] * rounds  # one after each 100 in a row


def test_list_is_written_to_standard_output(
    invoke: Invoke, double: IdentityService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORNADO_IDV_URL", double.url)
    monkeypatch.setenv("TORNADO_IDV_KEY", double.key)
    options = ("--grace", "0s", "--max-gone", "100%", "--confirm-after", "0s")
    result = invoke("reconcile", "-", *options, stdin=b"@bob\n@alice\n")
    assert (result.exit_code, result.stdout) == (0, "@bob\n")
    assert "2 accounts: 1 found, 1 gone" in result.stderr
    assert invoke("reconcile", "-", "--json", *options, stdin=b"").exit_code == 2
    assert invoke("reconcile", "-", stdin=b"@bob\n").exit_code == 2
    for name in ("a.csv", "a.jsonl", "a.ndjson"):
        (tmp_path / name).touch()
        assert "need --column" in invoke("reconcile", tmp_path / name, *options).stderr
    result = invoke("reconcile", "/proc/self/mem", *options)
    assert result.stderr == "/proc/self/mem: cannot be read: Input/output error\n"
    assert (result.exit_code, result.stdout) == (3, "")
    lines = b"@bob\n\n@alice\nhttps://profiles.example/m/carol\n"
    result = invoke("reconcile", "-", *options, stdin=lines)
    assert result.stdout == "@bob\nhttps://profiles.example/m/carol\n"
    assert invoke("reconcile", "-", *options, stdin=b"@alice\n@bo").exit_code == 2
    records = b'{"n": "@bob", "x": 1}\n{"n": "@alice"}'
    result = invoke("reconcile", "-", "--column", "n", *options, stdin=records)
    assert result.stdout == '{"n": "@bob", "x": 1}\n'
    result = invoke("reconcile", "-", *options, "--max-invalid", "1", stdin=b"\x1b]0;a\n")
    assert r"not a valid identifier: \x1b]0;a" in result.stderr
    assert invoke("reconcile", "-", *options, stdin=b"").exit_code == 0
    (state := tmp_path / "state").write_text(
        '{"version": 1, "column": "", "gone": {"@bob": ["2020-01-01T00:00:00Z", 1]}, "sample": []}'
    )
    waiting = (*options[2:], "--state", state)
    result = invoke("reconcile", "-", *waiting, stdin=b"@bob\n@carol\n")
    assert "2 wait for --grace or --min-runs, at least until 2020-01-04" in result.stderr
    monkeypatch.delenv("TORNADO_IDV_KEY")
    assert "no key: name" in invoke("reconcile", "-", *options, stdin=b"").stderr

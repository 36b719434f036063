"""``tornado-idv users``: rules for rows and lists, files, standard streams and signals."""

import errno
import inspect
import json
import os
import re
import signal
import sqlite3
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from idv_sqlite.store import SqliteUserStore
from support.databases import sqlite_databases
from support.databases.directory_sync import fail_sync
from support.databases.sqlite_databases import ALICE, BOB
from support.databases.user_lists import HEADER, csv_row
from support.processes.process import Invoke, on_terminal
from tornado_idv import User
from tornado_idv.features.users.commands import generated_users
from tornado_idv.features.users.staging import Staging

ALICE_ROW, BOB_ROW = csv_row(ALICE), csv_row(BOB)
Users = Callable[..., Result]
Source = Callable[..., Path]
Config = Callable[..., Path]


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "people.db"


def user(number: int, plan: str = "Free") -> User:
    return User(plan, str(number), f"user{number}")


def lines(*users: User) -> str:
    return HEADER + "".join(map(csv_row, users))


def changes(done: Result) -> tuple[int, ...]:
    """Return how many users were imported, added, updated and removed, and rows rejected."""
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["notes"]
    assert record["ok"] is True
    names = ("imported", "added", "updated", "removed", "rejected")
    return tuple(record[name] for name in names)


def test_import_reports_what_it_changed(users: Users, source: Source, path: Path) -> None:
    sqlite_databases.write(path, *map(user, range(5)))
    file = source(lines(user(1), user(2), user(3, "Pro"), user(5), user(6)))
    done = users("import", file, "--to", "people")
    said = "Imported 5 users into people: 2 added, 1 updated, 2 removed.\nPlans: Pro 1, Free 4.\n"
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", said)
    done = users("import", source(lines(ALICE)), "--to", "people", "--json", "--merge")
    assert changes(done) == (1, 1, 0, 0, 0)
    done = users("import", source(lines(ALICE)), "--to", "people")
    said = "Imported 1 user into people: 0 added, 0 updated, 5 removed.\nPlans: Free 1.\n"
    assert done.stderr == said
    assert json.loads(users("count", "--from", "people", "--json").stdout)["users"] == 1


REJECTED = [
    ("bad nick,1,Free,", "nickname: contains blanks"),
    ("@@carl,1,Free,", "nickname: not in a valid format"),
    ("carl,12x,Free,", "card_number: not in a valid format"),
    ("carl,1, ,", "plan: empty"),
    ("carl,1,a\0b,", "plan: not 1 to 256 characters without control"),
    ("carl,1,a\udcffb,", "plan: not UTF-8; if the list has another encoding, add"),
    ("carl,1,Free,ftp://x", "profile_url: not an http:// or https:// URL"),
    ("carl,1,Free,https://x/\udcff", "profile_url: not an http:// or"),
    ('"carl,1,Free,', "not CSV: a quote is not closed on its line"),
    ('carl,1,Free,"', "not CSV: a quote is not closed on its line"),
    ('"carl"x,1,Free,', "not CSV: a quote is not closed on its line"),
    ("carl,1,Free", "3 fields instead of 4"),
    ("@alice,1,Free,", "the nickname is also that of line 2"),
    (f"dora,{ALICE.card_number},Free,", "the card number is also that of line 2"),
]


def test_each_wrong_row_is_rejected_with_its_line(users: Users, source: Source) -> None:
    """After more valid rows than are read together."""
    valid = [*generated_users(250, seed=1)]
    csv = source(lines(ALICE, *valid) + "\n".join(row for row, _ in REJECTED) + f"\n{BOB_ROW}")
    done = users("import", csv, "--to", "people")
    assert (done.exit_code, done.stdout) == (0, "")
    rejected, count = Path(f"{csv}.rejected"), 1 + len(REJECTED)
    numbers = ", ".join(map(str, range(253, 252 + count)))
    assert done.stderr.startswith(
        "Imported 251 users into people: 251 added, 0 updated, 0 removed.\n"
        f"Rejected {count} rows; see {rejected}.\n"
        f'{count} users of the list (lines 2, {numbers}) are "not found".\nPlans: '
    )
    first, *reasons = rejected.read_text().splitlines()
    assert first.startswith(f"{csv}:2: the nickname is also that of line ")
    for line, (reason, (_, expected)) in enumerate(zip(reasons, REJECTED, strict=True), start=253):
        assert reason.startswith(f"{csv}:{line}: {expected}")
    assert not any(text in rejected.read_text() for text in ("carl", "alice", ALICE.card_number))
    assert users("import", source(HEADER + BOB_ROW), "--to", "people").exit_code == 0
    assert not rejected.exists()


def test_rejected_rows_are_in_the_order_of_the_list(users: Users, source: Source) -> None:
    given = [user(0), user(1), User("Free", "0", "carl"), User("Free", "9", "user0")]
    csv = source(lines(*given, User("", "8", "x")) + f'x,1,"Free\nand\r\nmore",\n{ALICE_ROW}')
    assert changes(users("import", csv, "--to", "people", "--json")) == (1, 1, 0, 0, 8)
    rejected = Path(f"{csv}.rejected").read_text().splitlines()
    assert [line.removeprefix(f"{csv}:")[0] for line in rejected] == [*"23456789"]


SPOILED, TORN = User("Free", "9.0", "user9"), User("", "8", "user8")
BAD, TAKEN = User("Free", "x", "bad"), User("Free", "1", "carl")
WORSE, WORST = User("", "901", "worse"), User("Free", "y", "worst")
NEW, ANY = [user(number) for number in range(100, 200)], "--max-rejected 100%"
REMOVED = "users would be removed, more than 2%; list them with --dry-run; if they are right, add"


@pytest.mark.parametrize(
    ("same", "others", "options", "expected"),
    [
        (9, [*NEW, SPOILED], "", 110),
        (9, [*NEW, BAD], "", "1 user of the list (line 111) would be"),
        (198, [BAD, WORSE], "--max-rejected 1%", 198),
        (198, [BAD, WORSE], "--max-rejected 2", 198),
        (198, [BAD, WORSE], "--max-rejected 1", "2 of 200 rows are rejected, more than 1; first"),
        (197, [BAD, WORSE, WORST], "", "3 users of the list (lines 199, 200, 201) would be"),
        (8, [*NEW, SPOILED, TORN], "", "2 of 110 rows are rejected, more than 1%; first error: "),
        (99, [BAD], "--max-rejected 0.9%", "1 of 100 rows are rejected, more than 0.9%"),
        (9, [*NEW, SPOILED], "--max-rejected 0", "1 of 110 rows are rejected, more than 0; first"),
        (99, [BAD], "--expect-rows 99", "has 100 rows, and not the 99 of --expect-rows; nothing"),
        (0, [], ANY, "has no valid user; nothing was changed"),
        (0, [BAD], ANY, "has no valid user; first error: line 2: card_number: not in a valid"),
        (0, [TAKEN], f"{ANY} --merge", "has no valid user; first error: line 2: the card number"),
        (7, NEW, "", f"3 of 10 {REMOVED} --max-removed 30%"),
        (9, [], "--max-removed 0%", "1 of 10 users would be removed, more than 0%"),
        (9, [], "--expect-rows 9", 9),
        (1, [], "--merge", 10),
    ],
)
def test_list_that_looks_wrong_is_refused(
    users: Users,
    source: Source,
    same: int,
    others: list[User],
    *,
    options: str,
    expected: str | int,
) -> None:
    """Ten users are stored. It has too many rejected rows, too few of these users, or none."""
    file = source(lines(*map(user, range(same)), *others))
    path = sqlite_databases.write(file.with_name("people.db"), *map(user, range(10)))
    before = path.read_bytes()
    done = users("import", file, "--to", "people", *options.split(), options=())
    if isinstance(expected, int):
        assert done.exit_code == 0
        assert users("count", "--from", "people").stdout == f"{expected}\n"
    else:
        assert (done.exit_code, expected in done.stderr) == (1, True), done.stderr
        assert "nothing was changed" in done.stderr
        assert path.read_bytes() == before
        assert ("rejected" in done.stderr) == (f"; see {file}.rejected; nothing" in done.stderr)
        assert Path(f"{file}.rejected").exists() or "rejected" not in done.stderr


OF_STORED = [
    "user0,0, ,",
    "us er0,,Free,",
    ",0,Free,",
    "user0,0,Free",
    "user0,0,Free,\nuser0,0,Pro,",
]
OF_OTHERS = [
    "carl,9001, ,",
    ",9001,Free,",
    "carl,0, ,",
    "user0,9001, ,",
    "carl,9001,Free",
    "carl,0,user1",
    "user0",
    "carl,0,Free,\nuser0,0,Free,",
    f"{user(1).nickname},9001,Free,\nuser0,9001,Free,",
]


@pytest.mark.parametrize(
    ("rows", "mode"),
    [*zip([*OF_STORED, *OF_OTHERS], cycle([(), ("--merge",), ("--dry-run",)]), strict=False)],
)
def test_list_that_names_who_would_not_be_found_is_refused(
    users: Users, source: Source, path: Path, rows: str, mode: tuple[str, ...]
) -> None:
    """By a nickname or a card number; what a stored user has is found after the import."""
    stored = sqlite_databases.write(path, *map(user, range(3)))
    before = stored.read_bytes()
    named = {"user0", *re.findall(r"user\d", rows)}
    valid = [each for each in map(user, range(301)) if each.nickname not in named]
    file = source(f"{lines(*valid[:-1])}{rows}\n{csv_row(valid[-1])}")
    done = users("import", file, "--to", "people", *mode, options=("--max-removed", "100%"))
    assert (done.exit_code, "not found" in done.stderr) == (int(rows in OF_OTHERS),) * 2
    if rows in OF_STORED:
        return
    assert path.read_bytes() == before
    count = rows.count("\n") + 1
    assert re.search(r"[12] users? of the list \(lines? [\d, ]+\) would be", done.stderr)
    assert f"or accept this with --max-rejected {count}; first error: line " in done.stderr
    given = ("--max-removed", "100%", "--max-rejected", str(count))
    done = users("import", file, "--to", "people", *mode, options=given)
    assert done.exit_code == 0
    assert re.search(
        r'^\d users? of the list \(lines? .*\) (is|are) "not found"\.$', done.stderr, re.MULTILINE
    )


def test_backend_says_how_many_users_may_be_removed(
    source: Source, config: Config, invoke: Invoke
) -> None:
    file = config("name: people, kind: sqlite, path: people.db, max_removed: 50%")
    sqlite_databases.write(file.with_name("people.db"), *map(user, range(9)))
    list_file = source(lines(*map(user, range(5))))
    for option, code in (("--max-removed=2%", 1), ("--merge", 0), ("--json", 0), ("--json", 0)):
        done = invoke("users", "import", list_file, "--to", "people", option, "--config", file)
        assert done.exit_code == code
        assert ("add --max-removed 45%" in done.stderr) == code
    assert changes(done) == (5, 0, 0, 0, 0)


def test_dry_run_lists_who_would_change_and_changes_nothing(
    users: Users, source: Source, path: Path
) -> None:
    """Also where the import would be refused. Its list is for its owner only."""
    sqlite_databases.write(path, *map(user, range(5)))
    before = path.read_bytes()
    moved, bad = User("Free", "22", "user2"), User("Free", "x", "user3")
    file = source(lines(user(0), user(1, "Pro"), moved, bad, user(7)))
    listed = [
        "added @user7",
        "changed @user1: plan",
        "changed @user2: card_number",
        "kept @user3: line 5 is rejected",
        "removed @user4",
    ]
    for options in (), ("--max-removed", "0%"):
        done = users("import", file, "--to", "people", "--dry-run", *options)
        assert done.exit_code == bool(options)
        assert ("This was a dry run: nothing was changed; see" in done.stderr) == (not options)
        assert done.stderr.startswith("Would import 4 users into people: ") == (not options)
        report = Path(f"{file}.changes")
        assert f"nothing was changed; see {report}" in done.stderr
        assert report.stat().st_mode & 0o777 == 0o600
        assert sorted(report.read_text().splitlines()) == listed
        report.unlink()
        assert path.read_bytes() == before
    for option in ("--dry-run", "--merge"):
        record = json.loads(users("import", file, "--to", "people", "--json", option).stdout)
        assert record["dry_run"] == (option == "--dry-run")


def test_list_without_rejected_rows_may_be_on_a_read_only_file_system(
    users: Users, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:  # as Linux does, also for a missing file
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "users.csv.rejected")

    monkeypatch.setattr(Path, "unlink", fail)
    done = users("import", source(lines(ALICE)), "--to", "people", "--json")
    assert changes(done) == (1, 1, 0, 0, 0)


def test_users_whose_rows_are_rejected_are_kept_and_counted(
    users: Users, source: Source, path: Path
) -> None:
    """A row that names no user may be any of those who are not in the list: all of them stay."""
    sqlite_databases.write(path, *map(user, range(4)))
    rows = f"{csv_row(user(0))}user1,4.0001E+15,Free,\nuser\udcff,2,Free,\n@new,-,Free,\n"
    done = users("import", source(HEADER + rows), "--to", "people", "--max-rejected", "3")
    assert "0 added, 0 updated, 1 removed.\nKept 2 users whose rows were rejected.\n" in done.stderr
    sqlite_databases.insert(path, user(3), user(4))
    rows = f"{csv_row(user(0))}user1,1-,Free,\nuser\udcff,77,Free,\n"
    done = users("import", source(HEADER + rows), "--to", "people")
    assert "0 removed.\nKept 1 user whose row was rejected.\nRejected 2 rows; see" in done.stderr
    said = "Removed no user: 1 rejected row may be about any of 3 users missing from the list;"
    assert said in done.stderr
    done = users("import", source(HEADER + rows), "--to", "people", "--merge")
    assert (done.exit_code, "Removed no user" in done.stderr) == (0, False), "it never removes one"


def test_card_number_that_cannot_pass_through_an_unused_one_is_refused(
    users: Users, source: Source, path: Path
) -> None:
    """The table lets only the two in; the message has both lines."""
    check = f"CHECK (card_number IN ('{ALICE.card_number}', '{BOB.card_number}'))"
    columns = f"nickname TEXT, card_number TEXT UNIQUE {check}, plan TEXT, profile_url TEXT"
    sqlite_databases.run(path, f"CREATE TABLE users ({columns})")
    sqlite_databases.insert(path, ALICE, BOB)
    before = path.read_bytes()
    rows = [User("Free", ALICE.card_number, "bob"), User("Free", BOB.card_number, "alice")]
    done = users("import", source(lines(*rows)), "--to", "people")
    assert (done.exit_code, path.read_bytes()) == (1, before)
    assert done.stderr.startswith("lines 2 and 3: one user gets the card number of the other")
    assert "nothing was changed" in done.stderr


def test_import_whose_summary_fails_changes_nothing(
    users: Users, source: Source, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of temporary files is full: no error comes after the commit."""
    sqlite_databases.write(path, BOB)
    before = path.read_bytes()

    def fail(_: Staging) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Staging, "plans", fail)
    done = users("import", source(lines(ALICE)), "--to", "people", "--merge")
    assert (done.exit_code, "SQLITE_TMPDIR sets its folder" in done.stderr) == (3, True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("error", [errno.EBUSY, errno.EXDEV])
def test_file_that_is_mounted_by_itself_is_named(
    users: Users, source: Source, path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    sqlite_databases.write(path, ALICE)

    def fail(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Path, "replace", fail)
    done = users("import", source(lines(ALICE)), "--to", "people")
    assert done.exit_code == 3
    assert re.search("is a mount point.*--merge", done.stderr)


def test_utf_16_file_of_sqlite_is_imported_into(users: Users, source: Source, path: Path) -> None:
    sqlite_databases.run(path, "PRAGMA encoding = 'UTF-16le'")
    sqlite_databases.write(path, BOB)
    plan = User("Grö\U0001f600", "5", "carl")
    assert users("import", source(lines(BOB, plan)), "--to", "people").exit_code == 0
    assert users("import", source(lines(ALICE)), "--to", "people", "--merge").exit_code == 0
    assert users("export", "--from", "people").stdout == lines(ALICE, BOB, plan)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_import_is_undone(
    users: Users, source: Source, path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    sqlite_databases.write(path, BOB)
    before = path.read_bytes()
    monkeypatch.setattr(Staging, "apply", lambda *_: os.kill(os.getpid(), number))
    done = users("import", source(lines(ALICE)), "--to", "people")
    assert (done.exit_code, done.output, path.read_bytes()) == (128 + number, "", before)


def test_command_under_nohup_outlives_its_terminal(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangup = signal.SIGHUP
    monkeypatch.setattr(SqliteUserStore, "count", lambda _: os.kill(os.getpid(), hangup) or 1)
    signal.signal(hangup, signal.SIG_IGN)
    assert "1" in users("count", "--from", "people").stdout


def test_export_replaces_neither_a_database_nor_a_pipe(
    users: Users, folder: Path, path: Path
) -> None:
    sqlite_databases.write(path, ALICE)
    os.mkfifo(pipe := folder / "pipe.csv")
    for file, problem in ((path, "a SQLite database"), (pipe, "not a regular file")):
        done = users("export", "--from", "people", file)
        assert (done.exit_code, f"{problem}; name another file" in done.stderr) == (3, True)
    assert pipe.is_fifo()
    assert users("export", "--from", "people").stdout == lines(ALICE)
    sqlite_databases.run(path, "DELETE FROM users")
    assert users("export", "--from", "people", "--format", "yaml").stdout == "users: []\n"


def test_export_to_a_symlink_replaces_its_target(users: Users, folder: Path, path: Path) -> None:
    sqlite_databases.write(path, ALICE)
    (link := folder / "link.csv").symlink_to(target := folder / "target.csv")
    assert users("export", "--from", "people", link).exit_code == 0
    assert (link.readlink(), target.read_text()) == (target, HEADER + ALICE_ROW)


@pytest.mark.parametrize(
    ("name", "options"),
    [("a.csv", ()), ("a.ndjson", ()), ("a.yml", ()), ("a.csv", ("--format", "jsonl"))],
)
def test_exported_users_with_unusual_plans_are_imported_again(
    users: Users, folder: Path, path: Path, name: str, options: Sequence[str]
) -> None:
    plans = [" a, 'b' ", '"', '""x', "# c: -", "\\n", "=1", "\ufeffé\u00a0\U0001f600", "-", "null"]
    stored = (User(plan, str(i), f"u{i}") for i, plan in enumerate(plans))
    sqlite_databases.write(path, BOB, *stored)
    file = folder / name
    file.touch(0o644)
    assert users("export", "--from", "people", file, *options).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert users("import", file, "--to", "other", "--max-rejected", 0, *options).exit_code == 0
    assert users("compare", "people", "other").exit_code == 0


@pytest.mark.parametrize(
    ("bob", "reason"),
    [
        (User("a\nmallory,1,Free,\n", "2", "bob"), "plan: not 1 to 256"),  # as CSV, two users
        (User("Free", "2", "bob", "ftp://x"), "profile_url: not an http:// or https:// URL"),
    ],
)
def test_export_of_a_user_that_an_import_would_reject_is_refused(
    users: Users, folder: Path, path: Path, bob: User, reason: str
) -> None:
    sqlite_databases.write(path, ALICE, bob)
    file = folder / "all.csv"
    file.write_text("before")
    done = users("export", "--from", "people", file)
    assert (done.exit_code, file.read_text(), list(folder.glob(".*"))) == (1, "before", [])
    assert done.stderr.startswith(f"user 2 in the order of nicknames: {reason}")
    assert "bob" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["export", "--from", "people"], ["compare", "people", "other"]]
)
def test_refused_command_leaves_no_store_open(
    users: Users, path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """The garbage collector may close it in another thread, which fails."""
    sqlite_databases.write(path, ALICE, User("a\nb", "2", "bob"))
    opened: list[Any] = []
    records = SqliteUserStore.records

    def recorded(store: SqliteUserStore) -> Any:
        opened.append(records(store))
        return opened[-1]

    monkeypatch.setattr(SqliteUserStore, "records", recorded)
    assert users(*arguments).exit_code != 0
    assert {inspect.getgeneratorstate(each) for each in opened} == {inspect.GEN_CLOSED}


def test_export_that_does_not_reach_the_disk_leaves_the_file_as_it_was(
    users: Users, folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_databases.write(path, ALICE)
    file = folder / "all.csv"
    file.write_text("before")
    fail_sync(monkeypatch, of_directories=False)
    done = users("export", "--from", "people", file)
    said = f"{file}: cannot be written: Input/output error\n"
    assert (done.exit_code, done.stderr, file.read_text()) == (3, said, "before")
    assert list(folder.glob(".*")) == []


def test_standard_input_is_read_as_a_file(
    users: Users, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a byte order mark, and bytes that are not UTF-8."""
    monkeypatch.chdir(folder)
    content = f"\ufeff{HEADER}{ALICE_ROW}carl,1,a\udcffb,\n".encode("utf-8", "surrogateescape")
    done = users("import", "-", "--to=people", "--format=csv", "--encoding=UTF8", stdin=content)
    assert done.exit_code == 0
    assert users("export", "--from", "people").stdout == HEADER + ALICE_ROW
    assert Path("stdin.rejected").read_text().startswith("standard input:3: plan: not UTF-8")


def test_wrong_use_names_what_is_right(users: Users, source: Source) -> None:
    csv = source(HEADER + ALICE_ROW)
    percentages = ("100.5%", "nan%", "-1", "", "\u00b2")
    for arguments, message in [
        ([csv, "--to", "x"], "there are: people, other, demo"),
        ([csv, "--to", "demo"], "of the kind yaml"),
        ([source("", "list.txt"), "--to", "people"], "add --format"),
        ([csv, "--to", "people", "--map", "a=b"], "the fields are nickname"),
        ([csv, "--to", "people", "--map", "=plan"], "write COLUMN=FIELD"),
        ([csv, "--to", "people", "--delimiter", ":"], "--delimiter"),
        ([csv, "--to", "people", "--max-removed", "5"], "from 0%"),
        *(
            ([csv, "--to", "people", f"--max-rejected={text}"], "neither a number nor a percentage")
            for text in percentages
        ),
    ]:
        done = users("import", *arguments)
        assert (done.exit_code, done.stdout, message in done.stderr) == (2, "", True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "has no list of users"),
        ("users:\n- {nickname: carl, plan: 'x}\n- {plan: x'}\n", ":2:26: a quote is not closed"),
        ('users:\n- {nickname: carl, plan: "x}\n- {plan: x"}\n', ":2:26: a quote is not closed"),
        ("count: 2\nusers: []", "the file may be truncated"),
        ("users: [x]", "not a mapping"),
        ("users:\n- {nickname: carl, card_number: '1', plan: a\udcff}\n", "not UTF-8"),
    ],
)
def test_list_that_is_not_of_its_format_is_refused(
    users: Users, source: Source, path: Path, text: str, message: str
) -> None:
    done = users("import", source(text, "list.yaml"), "--to", "people")
    assert (done.exit_code, message in done.stderr, "carl" in done.stderr) == (1, True, False)
    assert not path.exists()


def test_error_of_a_store_names_its_backend(users: Users, path: Path) -> None:
    path.write_bytes(b"no database" * 100)
    done = users("count", "--from", "people")
    assert (done.exit_code, done.stderr) == (3, "people: the file is not a database\n")


def test_rows_of_jsonl_are_checked_too(users: Users, source: Source) -> None:
    """Also with any pattern of nicknames; a row of YAML is checked as one of JSON."""
    good = {"nickname": "@alice", "card_number": "01", "plan": "\U0001f600"}
    rows = [json.dumps(good), "", '{"nickname": "b", "card_number": 12, "plan": "x"}', "[]", "{"]
    rows.append(json.dumps({**good, "nickname": "a\nb", "card_number": "2"}))
    file = source("\n".join(rows), "a.csv")
    pattern = "identifiers: {nickname_pattern: '[^@]+'}\n"
    assert users("import", file, "--to", "people", "--format", "jsonl", more=pattern).exit_code == 0
    assert Path(f"{file}.rejected").read_text().replace(f"{file}:", "").splitlines() == [
        "3: card_number: not text; write it in quotes",
        "4: not a JSON object",
        "5: not a line of JSON",
        "6: nickname: contains a control character",
    ]
    assert users("export", "--from", "people").stdout == f"{HEADER}alice,01,\U0001f600,\n"


def test_generated_users_are_unique_and_the_same_for_a_seed(invoke: Invoke) -> None:
    made = list(generated_users(5000, 7))
    assert len({each.nickname for each in made}) == 5000
    assert len({each.card_number for each in made}) == 5000
    first = invoke("users", "generate", "--count", 3, "--seed", 7, "--format", "jsonl").stdout
    nicknames = [json.loads(line)["nickname"] for line in first.splitlines()]
    assert nicknames == [each.nickname for each in made[:3]]


def test_import_whose_rejected_rows_cannot_be_written_changes_nothing(
    users: Users, source: Source, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full; its file is not deleted before, as one of an earlier import is."""
    sqlite_databases.write(path, BOB)
    csv = source(f"{HEADER}{ALICE_ROW}x y,1,Free,\n")
    full = Path(f"{csv}.rejected")
    full.symlink_to("/dev/full")
    unlink = Path.unlink
    monkeypatch.setattr(
        Path, "unlink", lambda path, **given: None if path == full else unlink(path, **given)
    )
    before = path.read_bytes()
    done = users("import", csv, "--to", "people")
    assert (done.exit_code, "list.csv.rejected: cannot be written" in done.stderr) == (3, True)
    assert path.read_bytes() == before


def test_list_that_cannot_be_read_is_named(users: Users) -> None:
    done = users("import", "/proc/self/mem", "--format", "csv", "--to", "people")
    said = "/proc/self/mem: cannot be used: Input/output error\n"
    assert (done.exit_code, done.stderr) == (3, said)


@pytest.mark.slow
def test_import_shows_its_progress_on_a_terminal(
    source: Source, config: Config, invoke: Invoke
) -> None:
    path = config("name: people, kind: sqlite, path: people.db")
    file = source(invoke("users", "generate", "--count", 5000).stdout)
    seen = on_terminal("users", "import", file, "--to", "people", "--config", path)
    shown, _, left = seen.rpartition("\x1b[?25h")
    assert all(len(line) <= 80 for line in re.split(r"[\r\n]+", shown))
    assert re.search(r"Importing  \[#+-+\] +\d+%", shown)
    assert left.strip().startswith("Imported 5,000 users into people: 5,000 added, 0 updated, 0 ")

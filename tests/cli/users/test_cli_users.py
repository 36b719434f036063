"""``tornado-idv users`` with SQLite files, and the rules for rows."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest
from click.testing import Result

from idv_sqlite.staging import Staging
from support.databases import sqlite_databases
from support.databases.directory_sync import fail_directory_sync
from support.databases.sqlite_databases import ALICE, BOB
from support.databases.user_lists import ANY_LIST, HEADER, csv_row
from support.processes.forked_commands import start
from tornado_idv import User
from tornado_idv.cli.users.commands import generated_users
from tornado_idv.cli.users.formats import Format, write_users

ALICE_ROW, BOB_ROW = csv_row(ALICE), csv_row(BOB)
Users = Callable[..., Result]


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "people.db"


def rows(path: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM users ORDER BY nickname").fetchall()


def test_import_replaces_all_users_and_export_writes_them_again(
    users: Users, source: Callable[..., Path], path: Path, folder: Path
) -> None:
    sqlite_databases.write(path, User("Old", "9", "old"), User("Old", ALICE.card_number, "carl"))
    path.chmod(0o640)
    csv = source(HEADER + ALICE_ROW + BOB_ROW)
    done = users("import", csv, "--to", "people", "--json")
    numbers = {"imported": 2, "added": 2, "updated": 0, "removed": 2, "rejected": 0}
    assert json.loads(done.stdout) == {"ok": True, **numbers}
    assert [row[0] for row in rows(path)] == ["alice", "bob"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert users("count", "--from", "people").stdout == "2\n"
    assert users("export", "--from", "people").stdout == HEADER + ALICE_ROW + BOB_ROW
    for name in ("again.csv", "again.jsonl", "again.yaml"):
        again = folder / name
        again.touch(0o644)
        assert users("export", "--from", "people", again).exit_code == 0
        assert again.stat().st_mode & 0o777 == 0o600
        assert users("import", again, "--to", "other", "--strict").exit_code == 0
        assert users("compare", "people", "other").exit_code == 0


REJECTED = {
    "nickname": ("bad nick,1,Free,", "nickname: not in a valid format"),
    "card": ("carl,12x,Free,", "card_number: not in a valid format"),
    "long card": (f"carl,{'1' * 33},Free,", "card_number: not in a valid format"),
    "plan": ("carl,1, ,", "plan: not 1 to 256 characters"),
    "NUL": ("carl,1,a\0b,", "plan: not 1 to 256 characters without control"),
    "line separator": ("carl,1,a\u2028b,", "plan: not 1 to 256 characters without control"),
    "delete": ("carl,1,Free,https://x/\x7f", "profile_url: not an http:// or https:// URL"),
    "open quote": ('"carl,1,Free,', "not CSV: a quote is not closed on its line"),
    "open quote at the end": ('carl,1,Free,"', "not CSV: a quote is not closed on its line"),
    "text after a quote": ('"carl"x,1,Free,', "not CSV: a quote is not closed on its line"),
    "not UTF-8": ("carl,1,a\udcffb,", "plan: not 1 to 256 characters"),
    "address": ("carl,1,Free,ftp://x", "profile_url: not an http:// or https:// URL"),
    "address with a blank": ("carl,1,Free,https://x/a b", "profile_url: not an http:// or"),
    "address that is not UTF-8": ("carl,1,Free,https://x/\udcff", "profile_url: not an http:// or"),
    "two @": ("@@carl,1,Free,", "nickname: not in a valid format"),
    "few fields": ("carl,1,Free", "3 fields instead of 4"),
    "same nickname": ("@alice,1,Free,", "the nickname is that of an earlier line"),
    "same card": (f"carl,{ALICE.card_number},Free,", "the card number is that of an earlier line"),
}

VALID_ROWS = 250


def test_each_wrong_row_is_rejected_with_its_line_and_no_value(
    users: Users, source: Callable[..., Path], path: Path
) -> None:
    """Among valid rows, which are validated together."""
    made = generated_users(VALID_ROWS * len(REJECTED), seed=1)
    valid = [f"{user.nickname},{user.card_number},{user.plan},\n" for user in made]
    lines = "".join(
        "".join([*valid[index :: len(REJECTED)], f"{row}\n"])
        for index, (row, _) in enumerate(REJECTED.values())
    )
    csv = source(HEADER + ALICE_ROW + lines)
    done = users("import", csv, "--to", "people")
    assert (done.exit_code, done.stdout) == (0, "")
    rejected = Path(f"{csv}.rejected")
    assert done.stderr == (
        f"Imported {1 + len(valid)} users into people: {1 + len(valid)} added, 0 updated, "
        "0 removed.\n"
        f"Rejected {len(REJECTED)} rows; see {rejected}.\n"
    )
    reasons = dict(
        line.removeprefix(f"{csv}:").split(": ", 1) for line in rejected.read_text().splitlines()
    )
    assert len(reasons) == len(REJECTED)
    for number, (_, reason) in enumerate(REJECTED.values(), start=1):
        assert reasons[str(2 + number * (VALID_ROWS + 1))].startswith(reason)
    assert not any(text in rejected.read_text() for text in ("carl", "alice", ALICE.card_number))
    assert users("import", source(HEADER + BOB_ROW), "--to", "people").exit_code == 0
    assert not rejected.exists()


def test_each_line_of_a_csv_row_that_spans_lines_is_rejected(
    users: Users, source: Callable[..., Path], path: Path
) -> None:
    csv = source(f'{HEADER}{ALICE_ROW}carl,1,"Free\nand\r\nmore",\n{BOB_ROW}')
    done = users("import", csv, "--to", "people", "--json")
    numbers = json.loads(done.stdout)
    assert (numbers["imported"], numbers["rejected"]) == (2, 3)
    assert [row[0] for row in rows(path)] == ["alice", "bob"]
    reasons = Path(f"{csv}.rejected").read_text()
    assert [line.split(":")[1] for line in reasons.splitlines()] == ["3", "4", "5"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (f"{HEADER}{ALICE_ROW}x y,1,Free,\n", ["--strict"], "1 of 2 rows are rejected"),
        (HEADER + ALICE_ROW + ALICE_ROW, ["--strict"], "1 of 2 rows are rejected"),
        (f'{HEADER}x,1,"Free,\n{ALICE_ROW}y,2,Free",\n', ["--strict"], "1 of 3 rows are rejected"),
        (HEADER, [], "has no valid user"),
        (f"{HEADER}x y,1,Free,\n", [], "has no valid user"),
    ],
    ids=["strict", "strict duplicate", "strict stray quotes", "empty", "none valid"],
)
def test_refused_import_changes_nothing(
    users: Users,
    source: Callable[..., Path],
    path: Path,
    text: str,
    options: list[str],
    *,
    message: str,
) -> None:
    sqlite_databases.write(path, BOB)
    content, files = path.read_bytes(), set(path.parent.iterdir())
    done = users("import", source(text), "--to", "people", *options)
    assert done.exit_code == 1
    assert message in done.stderr
    assert "nothing was changed" in done.stderr
    assert path.read_bytes() == content
    assert {each.suffix for each in set(path.parent.iterdir()) - files} <= {".csv", ".rejected"}


def test_merge_keeps_other_users_and_other_columns(
    users: Users, source: Callable[..., Path], path: Path
) -> None:
    """Two users exchange their card numbers; a card number of a third one is not taken."""
    sqlite_databases.write(path, ALICE, BOB, User("Free", "3", "carl"))
    sqlite_databases.run(path, "ALTER TABLE users ADD COLUMN since TEXT DEFAULT 'now'")
    sqlite_databases.run(path, "UPDATE users SET since = 'then'")
    csv = source(
        f"nick,card,plan\nalice,{BOB.card_number},Free\nbob,{ALICE.card_number},Pro\n"
        "dora,4,Free\nemil,3,Free\n"
    )
    options = ["--map", "nick=nickname", "--map", "card=card_number", "--merge"]
    assert users("import", csv, "--to", "people", *options).exit_code == 0
    assert [(row[0], row[1], row[4]) for row in rows(path)] == [
        ("alice", BOB.card_number, "now"),
        ("bob", ALICE.card_number, "now"),
        ("carl", "3", "then"),
        ("dora", "4", "now"),
    ]
    assert ":5: the card number is that of a stored user" in Path(f"{csv}.rejected").read_text()


def test_file_in_wal_mode_is_changed_in_a_transaction(
    users: Users, source: Callable[..., Path], path: Path
) -> None:
    """A renamed file would be read with the -wal file of the old one."""
    sqlite_databases.write(path, BOB)
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("PRAGMA journal_mode = WAL")
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM users").fetchone() == (1,)
        inode = path.stat().st_ino
        assert users("import", source(HEADER + ALICE_ROW), "--to", "people").exit_code == 0
        assert path.stat().st_ino == inode
        assert reader.execute("SELECT nickname FROM users").fetchone() == ("bob",)
        reader.execute("COMMIT")
        assert reader.execute("SELECT nickname FROM users").fetchone() == ("alice",)


def test_import_of_users_that_are_all_rejected_by_the_table_changes_nothing(
    invoke: Callable[..., Result],
    config: Callable[..., Path],
    source: Callable[..., Path],
    path: Path,
) -> None:
    sqlite_databases.run(
        path,
        "CREATE TABLE users (nickname TEXT, card_number TEXT, plan TEXT);"
        "INSERT INTO users VALUES ('kept', '1', 'Free');",
    )
    csv = source(HEADER + BOB_ROW)
    file = config("name: people, kind: sqlite, path: people.db")
    done = invoke("users", "import", *ANY_LIST, csv, "--to", "people", "--config", file)
    assert done.exit_code == 1
    assert "has no valid user" in done.stderr
    assert "nothing was changed" in done.stderr
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT nickname FROM users").fetchall() == [("kept",)]


def test_other_tables_and_names_of_columns_are_kept(
    invoke: Callable[..., Result],
    config: Callable[..., Path],
    source: Callable[..., Path],
    path: Path,
) -> None:
    sqlite_databases.run(
        path,
        'CREATE TABLE "the people" (nick TEXT, "card no" TEXT, tier TEXT);'
        "CREATE TABLE notes (text); INSERT INTO notes VALUES ('kept');",
    )
    file = config(
        "name: people, kind: sqlite, path: people.db, table: the people, "
        "columns: {nickname: nick, card_number: card no, plan: tier}"
    )
    csv = source(HEADER + ALICE_ROW + BOB_ROW)
    done = invoke("users", "import", *ANY_LIST, csv, "--to", "people", "--config", file)
    assert done.exit_code == 0
    assert ":3: profile_url: the table has no column" in Path(f"{csv}.rejected").read_text()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute('SELECT * FROM "the people"').fetchall() == [
            ("alice", ALICE.card_number, "Free")
        ]
        assert connection.execute("SELECT * FROM notes").fetchall() == [("kept",)]


def test_folded_nicknames_are_one_user(
    invoke: Callable[..., Result],
    config: Callable[..., Path],
    source: Callable[..., Path],
    path: Path,
) -> None:
    file = config(
        "name: people, kind: sqlite, path: people.db",
        more="identifiers: {nickname_case: fold}\n",
    )
    csv = source(f"{HEADER}{ALICE_ROW}ALICE,1,Free,\n")
    assert (
        invoke("users", "import", *ANY_LIST, csv, "--to", "people", "--config", file).exit_code == 0
    )
    assert [row[0] for row in rows(path)] == ["alice"]


def test_two_exports_to_one_file_at_the_same_time_are_both_complete(
    users: Users, folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One runs as a whole while the other one is writing; the last one to end has the name."""
    sqlite_databases.write(path, ALICE, BOB)
    sqlite_databases.write(folder / "other.db", ALICE)
    file = folder / "all.csv"
    between: list[str] = []

    def write_slowly(text: IO[str], form: Format, records: Iterable[User]) -> None:
        if not between:
            between.append("")
            text.write("half of a row")
            text.flush()
            assert users("export", "--from", "other", file).exit_code == 0
            between[0] = file.read_text()
            text.seek(0)
        write_users(text, form, records)

    monkeypatch.setattr("tornado_idv.cli.users.commands.write_users", write_slowly)
    assert users("export", "--from", "people", file).exit_code == 0
    assert between == [HEADER + ALICE_ROW]
    assert file.read_text() == HEADER + ALICE_ROW + BOB_ROW


@pytest.mark.parametrize("kind", ["file", "link"])
def test_export_uses_nothing_that_was_prepared_in_the_folder(
    users: Users, folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The name is another one then, and its file is new and private."""
    sqlite_databases.write(path, ALICE)
    victim = folder / "victim"
    victim.write_text("before")
    seen: list[Path] = []
    create = os.open

    def prepare_and_create(name: str, flags: int, mode: int = 0o777) -> int:
        if Path(name).parent == folder and flags & os.O_CREAT:
            seen.append(Path(name))
            if len(seen) == 1:
                os.link(victim, name) if kind == "file" else seen[0].symlink_to(victim)
            descriptor = create(name, flags, mode)
            assert os.fstat(descriptor).st_mode & 0o777 == 0o600
            return descriptor
        return create(name, flags, mode)

    monkeypatch.setattr(os, "open", prepare_and_create)
    assert users("export", "--from", "people", folder / "all.csv").exit_code == 0
    assert (folder / "all.csv").read_text() == HEADER + ALICE_ROW
    assert victim.read_text() == "before"
    assert [each.exists() for each in seen] == [True, False]


@pytest.mark.parametrize("form", ["csv", "jsonl", "yaml"])
def test_exported_users_with_unusual_plans_are_imported_again(
    users: Users, folder: Path, path: Path, form: str
) -> None:
    plans = [" a, 'b' ", '"', '""x', "# c: -", "\\n", "=1", "\ufeffé\u00a0\U0001f600", "-", "null"]
    sqlite_databases.write(path, *(User(plan, str(i), f"u{i}") for i, plan in enumerate(plans)))
    file = folder / f"all.{form}"
    assert users("export", "--from", "people", file).exit_code == 0
    assert users("import", file, "--to", "other", "--strict").exit_code == 0
    assert users("compare", "people", "other").exit_code == 0


def test_export_of_a_user_that_an_import_would_reject_is_refused(
    users: Users, folder: Path, path: Path
) -> None:
    """As CSV the plan of bob would be two users."""
    sqlite_databases.write(path, ALICE, User("a\nmallory,1,Free,\n", "2", "bob"))
    file = folder / "all.csv"
    file.write_text("before")
    done = users("export", "--from", "people", file)
    assert (done.exit_code, file.read_text()) == (1, "before")
    assert list(folder.glob(".*")) == []
    assert done.stderr.startswith("user 2 in the order of nicknames: plan: not 1 to 256 characters")
    assert "bob" not in done.stderr


def test_nickname_with_a_control_character_is_rejected_with_any_pattern(
    invoke: Callable[..., Result],
    config: Callable[..., Path],
    source: Callable[..., Path],
    path: Path,
) -> None:
    file = config(
        "name: people, kind: sqlite, path: people.db",
        more="identifiers: {nickname_pattern: '[^@]+'}\n",
    )
    lines = [
        json.dumps({"nickname": name, "card_number": "1", "plan": "x"}) for name in ("a\nb", "c")
    ]
    users = source("\n".join(lines), "list.jsonl")
    assert (
        invoke("users", "import", *ANY_LIST, users, "--to", "people", "--config", file).exit_code
        == 0
    )
    assert [row[0] for row in rows(path)] == ["c"]
    assert ":1: nickname: contains a control character" in Path(f"{users}.rejected").read_text()


def test_export_that_does_not_reach_the_disk_leaves_the_file_as_it_was(
    users: Users, folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_databases.write(path, ALICE)
    file = folder / "all.csv"
    file.write_text("before")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
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
    done = users("import", "-", "--to", "people", "--format", "csv", stdin=content)
    assert done.exit_code == 0
    assert users("export", "--from", "people").stdout == HEADER + ALICE_ROW
    assert Path("stdin.rejected").read_text().startswith("standard input:3: plan: not 1 to 256")


def test_wrong_use_names_what_is_right(users: Users, source: Callable[..., Path]) -> None:
    csv = source(HEADER + ALICE_ROW)
    for arguments, message in [
        (["import", csv, "--to", "x"], "there are: people, other, demo"),
        (["import", csv, "--to", "demo"], "of the kind yaml"),
        (["import", source("", "list.txt"), "--to", "people"], "add --format"),
        (["import", csv, "--to", "people", "--map", "a=b"], "the fields are nickname"),
        (["import", csv, "--to", "people", "--delimiter", ":"], "is not one of ',', ';'"),
        *(
            (["import", csv, "--to", "people", f"--max-rejected={text}"], "from 0% to 100%")
            for text in ("5", "101%", "100.5%", "-1%", "nan%", "5 %", "")
        ),
    ]:
        done = users(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert message in done.stderr


def test_unreadable_source_or_database_changes_nothing(
    users: Users, source: Callable[..., Path], path: Path
) -> None:
    for file, message in [
        (
            source("carl,1,Free\n", "bare.csv"),
            ":1: the header has no column nickname, card_number, plan, and may be a user",
        ),
        (source("a: 1", "list.yaml"), "has no list of users"),
        (
            source(
                "users:\n- {nickname: a, card_number: 1, plan: 'x}\n"
                "- {nickname: carl, card_number: 2, plan: x'}\n",
                "quotes.yaml",
            ),
            ":2:39: a quote is not closed on its line",
        ),
        (source("count: 2\nusers: []", "cut.yaml"), "the file may be truncated"),
    ]:
        done = users("import", file, "--to", "people")
        assert done.exit_code == 1
        assert message in done.stderr
        assert "carl" not in done.stderr
        assert not path.exists()
    sqlite_databases.run(
        path, "CREATE VIEW users AS SELECT 'a' nickname, '1' card_number, 'x' plan"
    )
    done = users("import", source(HEADER + ALICE_ROW), "--to", "people")
    assert (done.exit_code, "is a view" in done.stderr) == (3, True)
    path.write_bytes(b"no database" * 100)
    done = users("count", "--from", "people")
    assert (done.exit_code, done.stderr) == (3, "people: the file is not a database\n")


def test_terminated_import_changes_nothing(
    users: Users, source: Callable[..., Path], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM comes when all is written and not yet renamed."""
    sqlite_databases.write(path, BOB)
    content = path.read_bytes()

    def terminate(self: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("idv_sqlite.staging.Staging.detach", terminate)
    done = users("import", source(HEADER + ALICE_ROW), "--to", "people")
    assert done.exit_code == 128 + signal.SIGTERM
    assert path.read_bytes() == content
    assert [each.name for each in path.parent.glob(".*")] == []


def test_import_that_may_not_outlast_a_crash_is_uncertain(
    users: Users, source: Callable[..., Path], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_directory_sync(monkeypatch)
    sqlite_databases.write(path, BOB)
    done = users("import", source(HEADER + ALICE_ROW), "--to", "people")
    assert done.exit_code == 3
    assert "people: Input/output error; the users were changed, and whether" in done.stderr
    assert [row[0] for row in rows(path)] == ["alice"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("option", [[], ["--merge"]], ids=["replace", "merge"])
def test_signal_after_the_commit_does_not_hide_that_the_users_are_changed(
    users: Users,
    source: Callable[..., Path],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    option: list[str],
    number: signal.Signals,
) -> None:
    sqlite_databases.write(path, ALICE)
    close = Staging.close

    def close_with_signal(staging: Staging) -> None:
        close(staging)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(Staging, "close", close_with_signal)
    done = users("import", source(HEADER + BOB_ROW), "--to", "people", *option)
    assert (done.exit_code, done.stderr.partition(":")[0]) == (0, "Imported 1 user into people")
    assert [row[0] for row in rows(path)][-1] == "bob"


def test_killed_import_leaves_the_file_and_the_next_one_works(
    users: Users, source: Callable[..., Path], path: Path
) -> None:
    sqlite_databases.write(path, BOB)
    path.with_name(".people.db.import").write_bytes(b"what a killed import left")
    assert users("import", source(HEADER + ALICE_ROW), "--to", "people").exit_code == 0
    assert [row[0] for row in rows(path)] == ["alice"]


def test_generated_users_are_unique_and_the_same_for_a_seed(
    users: Users, invoke: Callable[..., Result]
) -> None:
    made = list(generated_users(5000, 7))
    assert len({user.nickname for user in made}) == len({user.card_number for user in made}) == 5000
    first = invoke("users", "generate", "--count", 3, "--seed", 7, "--format", "jsonl").stdout
    assert [json.loads(line)["nickname"] for line in first.splitlines()] == [
        user.nickname for user in made[:3]
    ]


def test_jsonl_rows_are_checked_too(users: Users, source: Callable[..., Path], path: Path) -> None:
    good = json.dumps({"nickname": "@alice", "card_number": "01", "plan": "\U0001f600"})
    file = source(
        f'{good}\n\n{{"nickname": "b", "card_number": 12, "plan": "x"}}\n[]\n{{\n', "a.jsonl"
    )
    assert users("import", file, "--to", "people").exit_code == 0
    reasons = [
        line.partition(".jsonl:")[2] for line in Path(f"{file}.rejected").read_text().splitlines()
    ]
    assert reasons == [
        "3: card_number: not text; write it in quotes",
        "4: not a JSON object",
        "5: not a line of JSON",
    ]
    assert rows(path) == [("alice", "01", "\U0001f600", None)]


def test_new_file_has_unique_indexes(users: Users, source: Callable[..., Path], path: Path) -> None:
    """Also where the index of card numbers is the first to find a duplicate."""
    csv = source(f"{HEADER}{ALICE_ROW}carl,{ALICE.card_number},Free,\n")
    assert users("import", csv, "--to", "people").exit_code == 0
    assert [row[0] for row in rows(path)] == ["alice"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    for row in ("'alice', '1', '', ''", f"'carl', '{ALICE.card_number}', '', ''"):
        with pytest.raises(sqlite3.IntegrityError):
            sqlite_databases.run(path, f"INSERT INTO users VALUES ({row})")


def test_import_whose_rejected_rows_cannot_be_written_changes_nothing(
    users: Users, source: Callable[..., Path], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full."""
    sqlite_databases.write(path, BOB)
    csv = source(f"{HEADER}{ALICE_ROW}x y,1,Free,\n")
    monkeypatch.setattr(
        "tornado_idv.cli.users.import_users.RejectedRows.__enter__", lambda rejected: rejected
    )
    Path(f"{csv}.rejected").symlink_to("/dev/full")
    done = users("import", csv, "--to", "people")
    assert (done.exit_code, "list.csv.rejected: cannot be written" in done.stderr) == (3, True)
    assert [row[0] for row in rows(path)] == ["bob"]


@pytest.mark.slow
def test_import_whose_result_cannot_be_printed_is_done(
    source: Callable[..., Path], config: Callable[..., Path], path: Path, folder: Path
) -> None:
    arguments = ["import", source(HEADER + ALICE_ROW), "--to", "people", "--json", "--config"]
    file = config("name: people, kind: sqlite, path: people.db")
    done = start(folder, "users", *arguments, file, output="/dev/full")
    assert (done.wait(), done.stderr) == (
        0,
        "done, but standard output cannot be written: No space left on device\n",
    )
    assert [row[0] for row in rows(path)] == ["alice"]


@pytest.mark.parametrize("option", [[], ["--merge"]], ids=["replace", "merge"])
def test_file_that_is_created_during_its_import_is_not_replaced(
    users: Users,
    source: Callable[..., Path],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: list[str],
) -> None:
    """By another import, whose users would be lost."""
    monkeypatch.setattr(
        "tornado_idv.cli.users.import_users.RejectedRows.check",
        lambda _: path.exists() or sqlite_databases.write(path, BOB),
    )
    done = users("import", source(HEADER + ALICE_ROW), "--to", "people", *option)
    assert (done.exit_code, "import again" in done.stderr) == (3, True)
    assert [row[0] for row in rows(path)] == ["bob"]
    assert [each.name for each in path.parent.glob(".*")] == []

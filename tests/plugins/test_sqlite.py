"""The SQLite backend: conformance, its start, the tables it accepts, and its revision."""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import idv_sqlite
from idv_sqlite import table
from idv_sqlite.backend import SqliteBackend
from idv_sqlite.openfile import revision_of
from idv_sqlite.reader import Reader
from support.databases.sqlite_databases import (
    ALICE,
    BOB,
    USERS,
    insert,
    levels,
    run,
    serving,
    start_error,
    write,
)
from support.pages import code_blocks
from support.processes.permissions import public_directory, unprivileged
from tornado_idv import Broken, ByCard, ByNickname, Unavailable, User, yaml_loader
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import BackendConformance, MakeBackend, make_backend
from tornado_idv.lookup.guard import Guard
from tornado_idv.registry import opened_backend

README = Path(idv_sqlite.__file__).with_name("README.md").read_text(encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.db"


class TestConformance(BackendConformance):
    """Names that need quotes, collations that ignore case, no rowid, two readers."""

    holds_duplicates = False

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "odd %3f#? name.db"

    @pytest.fixture
    def make_backend(self, path: Path) -> MakeBackend:
        def make(users: Sequence[User]) -> AnyBackend:
            path.unlink(missing_ok=True)
            run(
                path,
                """CREATE TABLE "my ""users""; --" (
                    "select" TEXT COLLATE NOCASE PRIMARY KEY, "card'number" VARCHAR(32) UNIQUE,
                    "a b" CLOB, "u.""x" TEXT
                ) WITHOUT ROWID""",
            )
            insert(path, *users, into='"my ""users""; --"')
            columns = {"nickname": "SELECT", "card_number": "card'number", "plan": "a b"}
            return make_backend(
                SqliteBackend,
                path.parent,
                path=path.name,
                table='my "users"; --',
                columns={**columns, "profile_url": 'u."x'},
                readers="2",
            )

        return make

    @pytest.fixture
    def truncated_backend(self, make_backend: MakeBackend, path: Path) -> AnyBackend:
        backend = make_backend(self.users)
        os.truncate(path, path.stat().st_size // 2)
        return backend

    @pytest.fixture
    def failing_backend(self, tmp_path: Path) -> AnyBackend:
        (tmp_path / "garbage.db").write_bytes(b"no database" * 500)
        return make_backend(SqliteBackend, tmp_path, path="garbage.db")


def test_parameters_of_queries_are_never_logged() -> None:
    assert logging.getLogger("aiosqlite").level > logging.DEBUG


START_ERRORS: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "empty": (b"", {}, "users.db: the file is empty"),
    "no tables": ("PRAGMA user_version = 1", {}, 'no table "users"; there are: none'),
    "another table": (
        "CREATE TABLE user (a); CREATE TABLE cars (b); CREATE VIEW all_users AS SELECT 1",
        {},
        'no table "users" (did you mean "user"?); there are: "all_users", "cars", "user"',
    ),
    "another column": (
        "CREATE TABLE users (nick TEXT, card_number TEXT, plan TEXT)",
        {},
        (
            'the table "users" has no column "nickname" (did you mean "nick"?); '
            'there are: "nick", "card_number", "plan"'
        ),
    ),
    "no plan": ("CREATE TABLE users (nickname TEXT, card_number TEXT)", {}, 'no column "plan"'),
    "no such profile_url": (
        USERS,
        {"columns": {"profile_url": "homepage"}},
        'no column "homepage"',
    ),
    "ANY of a table that is not STRICT": (
        "CREATE TABLE users (nickname TEXT, card_number ANY, plan TEXT)",
        {},
        'the column "card_number" is declared ANY and turns digits into numbers',
    ),
    "CHARINT nickname": (
        "CREATE TABLE users (nickname CHARINT, card_number TEXT, plan TEXT)",
        {},
        'the column "nickname" is declared CHARINT and turns digits into numbers',
    ),
    "nicknames with @": (
        """CREATE TABLE "the ""people" ("a nick" TEXT UNIQUE, card_number TEXT, plan TEXT);
        INSERT INTO "the ""people" VALUES ('alice', '1', 'Free'), ('@bob', '2', 'Free')""",
        {"table": 'the "people', "columns": {"nickname": "a nick"}},
        """UPDATE "the ""people" SET "a nick" = substr("a nick", 2) WHERE "a nick" LIKE '@%\'""",
    ),
    "a view that fails": (
        "CREATE VIEW users AS SELECT a AS nickname, b AS card_number, c AS plan FROM gone",
        {},
        "the table, or a column of it, is gone",
    ),
    "a view that cannot be trusted": (
        """CREATE VIEW users AS SELECT name AS nickname, type AS card_number, pk AS plan
        FROM pragma_table_info('people')""",
        {},
        "the view uses a virtual table or function that trusted_schema = OFF forbids",
    ),
}


@pytest.mark.parametrize(
    ("content", "options", "message"), list(START_ERRORS.values()), ids=list(START_ERRORS)
)
async def test_a_file_that_does_not_fit_stops_the_start(
    path: Path, content: str | bytes, options: dict[str, Any], message: str
) -> None:
    """The text says what there is, and no thread is left behind."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        run(path, content)
    error = await start_error(path, **options)
    assert error.startswith(f"backend tested: {path}: ")
    assert message in error


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent.db", "no such file; `tornado-idv users import`"),
        ("pipe", "not a regular file; write the path of a SQLite database"),
        ("loop.db", "a loop of symbolic links; make the link lead to a file"),
    ],
    ids=["missing", "FIFO", "symlink loop"],
)
async def test_what_is_no_file_stops_the_start(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "loop.db").symlink_to("loop.db")
    os.mkfifo(tmp_path / "pipe")
    assert message in await start_error(tmp_path / path)


@pytest.fixture
def public_path() -> Iterator[Path]:
    with public_directory() as path:
        yield path


async def start_error_in_a_read_only_directory(path: Path) -> str:
    path.parent.chmod(0o555)
    with unprivileged():
        return await start_error(path)


async def test_wal_mode_in_a_read_only_directory_is_explained_at_start(public_path: Path) -> None:
    """The last writer has closed the file, and its -shm and -wal files are gone."""
    path = write(public_path / "users.db", ALICE)
    run(path, "PRAGMA journal_mode = WAL")
    error = await start_error_in_a_read_only_directory(path)
    assert "the database is in WAL mode and this user cannot create or write its -wal" in error
    assert "let this user write to the directory" in error
    assert "PRAGMA journal_mode=DELETE" in error
    assert error.endswith("(SQLITE_READONLY_DIRECTORY)")


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_file_without_read_permission_is_explained(public_path: Path, suffix: str) -> None:
    path = write(public_path / "users.db", ALICE)
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE users SET plan = 'Pro'")
        path.with_name(path.name + suffix).chmod(0o000)
        error = await start_error_in_a_read_only_directory(path)
    assert "its -wal, -shm or -journal file cannot be opened" in error
    assert "give this user permission to read them" in error


async def test_a_journal_left_by_a_crashed_writer_is_explained_at_the_start(path: Path) -> None:
    copied = write(path, ALICE).with_name("copied.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.executescript("PRAGMA cache_size = 1; PRAGMA cache_spill = 1; BEGIN")
        rows = [(f"user{number}", f"{number:04}", "x" * 2000) for number in range(50)]
        writer.executemany("INSERT INTO users VALUES (?, ?, ?, NULL)", rows)
        copied.write_bytes(path.read_bytes())
        Path(f"{copied}-journal").write_bytes(Path(f"{path}-journal").read_bytes())
    error = await start_error(copied)
    assert "roll it back by opening the file once for writing" in error
    assert error.endswith("(SQLITE_READONLY_ROLLBACK)")


async def test_a_file_replaced_as_it_opens(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connections might lead to either."""
    write(path, ALICE)

    async def replacing(*args: Any) -> table.Table:
        found = await inspect(*args)
        write(path.with_name("new.db"), BOB).replace(path)
        return found

    inspect = table.inspect
    monkeypatch.setattr(table, "inspect", replacing)
    error = await start_error(path)
    assert "replaced while it was opened" in error


async def test_damage_stops_the_start_or_in_a_large_file_the_lookup(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page of a small file is read before the first lookup."""
    content = bytearray(write(path, ALICE).read_bytes())
    content[-4088:] = b"\xff" * 4088  # the rows of its last page, an index, can be counted
    path.write_bytes(content)
    assert "the database is damaged" in await start_error(path)
    monkeypatch.setattr("idv_sqlite.openfile.CHECKED_SIZE", 0)
    async with serving(path) as backend:
        with pytest.raises(Broken, match="the database is damaged"):
            await backend.find(ByCard(ALICE.card_number))


async def test_a_backend_that_is_not_open_is_unavailable(tmp_path: Path) -> None:
    backend = make_backend(SqliteBackend, tmp_path, path="users.db")
    with pytest.raises(Unavailable, match="not open"):
        await backend.find(ByNickname("alice"))
    await backend.close()


CAUTIONS: dict[str, tuple[str, list[str]]] = {
    "no index": (
        "CREATE TABLE users (nickname TEXT, card_number TEXT, plan TEXT)",
        [
            "reads the whole table; an index is missing",
            'CREATE UNIQUE INDEX "users_nickname" ON "users" ("nickname")',
            'CREATE UNIQUE INDEX "users_card_number" ON "users" ("card_number")',
        ],
    ),
    "other indexes": (
        """CREATE TABLE users (nickname TEXT PRIMARY KEY, card_number TEXT, plan TEXT, a TEXT);
        CREATE INDEX plain ON users (card_number);
        CREATE UNIQUE INDEX pair ON users (card_number, plan);
        CREATE UNIQUE INDEX other_pair ON users (card_number, a);
        CREATE UNIQUE INDEX part ON users (card_number) WHERE plan = 'Free';
        CREATE UNIQUE INDEX expression ON users (lower(card_number));""",
        ['CREATE UNIQUE INDEX "users_card_number" ON "users" ("card_number")'],
    ),
    "index of a collation": (
        """CREATE TABLE users (nickname TEXT COLLATE NOCASE UNIQUE, card_number TEXT, plan TEXT);
        CREATE UNIQUE INDEX cards ON users (card_number COLLATE NOCASE)""",
        ["a lookup by card number reads the whole table"],
    ),
    "names in another case": (
        "CREATE TABLE Users (Nickname clob UNIQUE, CARD_NUMBER CLOB UNIQUE, Plan AS ('Pro'))",
        [],
    ),
    "small when analysed": (
        USERS + "INSERT INTO users VALUES ('alice', '1', 'Free', NULL); ANALYZE",
        [],
    ),
    "nothing but an underline in front": (
        """CREATE TABLE users (
            nickname TEXT COLLATE NOCASE PRIMARY KEY, card_number TEXT UNIQUE, plan TEXT
        ) WITHOUT ROWID;
        INSERT INTO users VALUES ('_alice', '1', 'Free'), ('[', '2', 'Free')""",
        [],
    ),
    "a view of indexed columns": (
        """CREATE TABLE people (nickname UNIQUE, card TEXT UNIQUE, number INTEGER, plan);
        CREATE UNIQUE INDEX numbers ON people (coalesce(card, number + 0));
        CREATE VIEW users AS
            SELECT nickname, coalesce(card, number + 0) AS card_number, plan FROM people""",
        [],
    ),
    "view": (
        "CREATE VIEW users AS SELECT 'alice' AS nickname, '4000' AS card_number, 'Free' AS plan",
        [],
    ),
}


TABLE = "CREATE TABLE users (nickname TEXT{}, card_number TEXT UNIQUE, plan TEXT);"
FOLDED: dict[str, tuple[str, list[str]]] = {
    "an index": (
        TABLE.format("") + "CREATE UNIQUE INDEX n ON users (nickname COLLATE NOCASE);",
        [],
    ),
    "a column": (TABLE.format(" COLLATE nocase UNIQUE"), []),
    "an index that tells case apart": (
        TABLE.format(" UNIQUE"),
        ["a lookup by nickname reads the whole table", "COLLATE NOCASE)"],
    ),
}


@pytest.mark.parametrize(
    ("case", "script", "warnings"),
    [
        *(pytest.param("preserve", *each, id=name) for name, each in CAUTIONS.items()),
        *(pytest.param("fold", *each, id=f"folded, {name}") for name, each in FOLDED.items()),
    ],
)
async def test_the_start_warns_of_what_is_slow_or_not_sure(
    path: Path, caplog: pytest.LogCaptureFixture, case: str, script: str, warnings: list[str]
) -> None:
    """The statements of the warnings make all of them go away."""
    run(path, script)
    async with serving(path, case):
        logged = levels(caplog, logging.WARNING)
    assert len(logged) == len(warnings)
    for warning in warnings:
        assert any(warning in line for line in logged)
    statements = [line.partition("create one: ")[2] for line in logged if "create one: " in line]
    run(path, ";".join(statements))
    caplog.clear()
    async with serving(path, case):
        assert (levels(caplog, logging.WARNING) == []) == (statements != [] or warnings == [])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("('alice', '4000', NULL, NULL), ('ALICE', '4001', 'Free', NULL)", "plan"),
        ("('alice', '4000', '', NULL)", "plan"),
        ("('alice', 4000, 'Free', NULL)", "card number"),
        ("('alice', '4000', 'Free', '')", "profile URL"),
        ("('alice', '4000', CAST(x'ff' AS TEXT), NULL)", "not valid UTF-8"),
        ("('alice', '4000', 'Free', NULL), ('alice', '4001', 'Free', NULL)", "two rows"),
    ],
    ids=["plan NULL", "plan empty", "card a number", "URL empty", "not UTF-8", "twice"],
)
async def test_a_row_that_cannot_be_right_is_broken(path: Path, row: str, reason: str) -> None:
    run(path, "CREATE TABLE users (nickname, card_number, plan, profile_url)")
    run(path, f"INSERT INTO users VALUES {row}")
    async with serving(path) as backend:
        with pytest.raises(Broken, match=reason) as caught:
            await backend.find(ByNickname("alice"))
        assert "alice" not in repr(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("case", ["preserve", "fold"])
async def test_a_nickname_added_with_an_at_sign_is_broken(path: Path, case: str) -> None:
    """Alone and in a batch. The table is checked for such nicknames only when it is opened."""
    write(path, ALICE)
    async with serving(path, case) as backend:
        run(path, "INSERT INTO users VALUES ('@carol', '7', 'Free', NULL)")
        run(path, f"INSERT INTO users VALUES ('@{ALICE.nickname}', '8', 'Free', NULL)")
        queries = [ByNickname("carol"), ByCard("7"), ByNickname("dave"), ByNickname(ALICE.nickname)]
        lookups = [backend.find(each) for each in queries]
        *broken, unknown, found = await asyncio.gather(*lookups, return_exceptions=True)
        assert ["stored with a leading @" in repr(each) for each in broken] == [True, True]
        assert (unknown, found) == (None, ALICE)


async def test_at_sign_removed_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In WAL mode, the file is not modified, so the lookup is not repeated."""
    fetch = Reader.fetch

    async def repaired(*args: Any) -> Any:
        rows = await fetch(*args)
        run(path, "UPDATE users SET nickname = substr(nickname, 2) WHERE nickname LIKE '@%'")
        return rows

    run(write(path), "PRAGMA journal_mode = wal")
    async with serving(path) as backend:
        insert(path, User("Free", "4000", "@alice"))
        monkeypatch.setattr(Reader, "fetch", repaired)
        assert await backend.find(ByNickname("alice")) == User("Free", "4000", "alice")


async def test_a_huge_number_is_found_by_no_query_that_it_does_not_equal(path: Path) -> None:
    """Python converts no text of 5,000 digits to an integer, and raises a ValueError."""
    huge = "9" * 5000
    run(path, "CREATE TABLE users (nickname, card_number, plan)")
    run(path, f"INSERT INTO users VALUES ('huge', {huge}, 'Free'), ('alice', '4000', 'Free')")
    run(path, "INSERT INTO users VALUES (-5, '7', 'Free')")
    async with serving(path) as backend:
        assert await backend.find(ByNickname("alice")) == User("Free", "4000", "alice")
        assert await backend.find(ByCard("4000")) == User("Free", "4000", "alice")
        for absent in ("4001", "9", "8" * 19, "-" + huge, huge + "x"):
            assert await backend.find(ByCard(absent)) is None
        assert await backend.find(ByNickname(huge)) is None
        for query in (ByNickname("huge"), ByCard(huge), ByCard("0" + huge)):
            with pytest.raises(Broken, match="card number of a row is not text"):
                await backend.find(query)
        with pytest.raises(Broken, match="nickname of a row is not text"):
            await backend.find(ByNickname("-5"))


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
async def test_bytes_that_fold_to_one_nickname_are_broken(path: Path, encoding: str) -> None:
    run(
        path,
        f"""PRAGMA encoding = '{encoding}';
        CREATE TABLE users (nickname TEXT, card_number TEXT, plan TEXT);
        INSERT INTO users VALUES ('Alice', '1', 'Free'), ('alicE', '2', 'Free'),
            (X'{b"Carol".hex()}', '3', 'Free'), ('BOB', '4', 'Free'),
            (X'{"Erin".encode(encoding).hex()}', '5', 'Free')""",
    )
    async with serving(path, "fold") as backend:
        reasons = {"alice": "two rows", "carol": "is not text", "erin": "is not text"}
        for nickname, reason in reasons.items():
            with pytest.raises(Broken, match=reason):
                await backend.find(ByNickname(nickname))
        assert await backend.find(ByNickname("dave")) is None
        guard, deadline = Guard(backend, lambda _: True), time.monotonic() + 10
        for query in (ByNickname("bob"), ByCard("4")):
            assert await backend.find(query) == User("Free", "4", "BOB")
            assert (await guard.find(query, deadline)).user == User("Free", "4", "bob")


async def test_users_that_differ_in_case_alone_are_two(path: Path) -> None:
    """Also where the column's collation holds them for one."""
    run(
        path,
        """CREATE TABLE users (nickname TEXT COLLATE NOCASE, card_number TEXT UNIQUE, plan TEXT);
        CREATE INDEX nicknames ON users (nickname);
        INSERT INTO users VALUES ('ALICE', '1', 'Free'), ('Alice', '2', 'Free'),
            ('aLICE', '3', 'Free'), ('alice', '4', 'Free')""",
    )
    async with serving(path) as backend:
        assert await backend.find(ByNickname("alice")) == User("Free", "4", "alice")
        assert await backend.find(ByNickname("alicE")) is None


def revision(path: Path) -> str:
    return revision_of(path, path.resolve())


def test_revision_differs_after_a_change_in_wal_mode(path: Path) -> None:
    with closing(sqlite3.connect(write(path, ALICE))) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        revisions = [revision(path)]
        for plan in ("a", "b"):
            database.execute("UPDATE users SET plan = ?", [plan])
            database.commit()
            revisions.append(revision(path))
        assert len({*revisions}) == 3
        assert revision(path) == revisions[-1]
        # A log that was written to the file is begun again, and keeps its size.
        database.execute("PRAGMA wal_checkpoint(RESTART)")
        revisions.append(revision(path))
        size = Path(f"{path}-wal").stat().st_size
        time.sleep(0.02)  # the times of a file are those of the last tick
        database.execute("UPDATE users SET plan = 'c'")
        database.commit()
        assert Path(f"{path}-wal").stat().st_size == size
        assert revision(path) not in revisions


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
async def test_revision_changes_after_the_change_was_reported_and_not_before(
    path: Path, mode: str
) -> None:
    run(write(path, ALICE), f"PRAGMA journal_mode = {mode}")
    async with serving(path) as backend:
        before = backend.revision
    assert backend.revision is None
    async with serving(path) as backend:
        at_report: list[str | None] = []
        backend.on_change(lambda: at_report.append(backend.revision))
        await backend.check()
        assert (backend.revision, at_report) == (before, [])
        insert(path, BOB)
        assert backend.revision == before
        await backend.check()
        assert at_report == [before]
        assert backend.revision not in (before, None)


EXAMPLES = zip(code_blocks(README, "sql"), code_blocks(README, "yaml"), strict=True)


@pytest.mark.parametrize(("script", "entry"), list(EXAMPLES))
async def test_every_example_of_the_readme_finds_its_user(
    path: Path, caplog: pytest.LogCaptureFixture, script: str, entry: str
) -> None:
    run(path, script)
    (options,) = yaml_loader.read(entry.encode(), "README.md")["backends"]
    async with opened_backend(make_backend(SqliteBackend, path.parent, **options)) as backend:
        assert await backend.find(ByNickname("alice")) == ALICE
        assert await backend.find(ByCard("4000123412341234")) == ALICE
        assert await backend.find(ByNickname("Alice")) is None
    assert levels(caplog, logging.WARNING) == []

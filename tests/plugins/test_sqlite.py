"""The SQLite backend: conformance, its start, and the tables it accepts."""

import asyncio
import logging
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import idv_sqlite
from idv_sqlite import table
from idv_sqlite.backend import SqliteBackend
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
from support.processes.permissions import public_directory, unprivileged
from tornado_idv import Broken, ByCard, ByNickname, Query, Unavailable, User, yaml_loader
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import BackendConformance, MakeBackend, make_backend
from tornado_idv.registry import open_backends

README = Path(idv_sqlite.__file__).with_name("README.md").read_text(encoding="utf-8")


class TestConformance(BackendConformance):
    holds_duplicates = False

    @pytest.fixture
    def make_backend(self, tmp_path: Path) -> MakeBackend:
        def make(users: Sequence[User]) -> AnyBackend:
            path = tmp_path / "users.db"
            path.unlink(missing_ok=True)
            write(path, *users)
            return make_backend(SqliteBackend, tmp_path, path="users.db")

        return make

    @pytest.fixture
    def truncated_backend(self, make_backend: MakeBackend, tmp_path: Path) -> AnyBackend:
        backend = make_backend(self.users)
        path = tmp_path / "users.db"
        os.truncate(path, path.stat().st_size // 2)
        return backend

    @pytest.fixture
    def failing_backend(self, tmp_path: Path) -> AnyBackend:
        return make_backend(SqliteBackend, tmp_path, path="absent.db")


class TestConformanceOfAnOddTable(BackendConformance):
    """Names that need quotes, collations that ignore case, no rowid, two readers."""

    holds_duplicates = False

    @pytest.fixture
    def make_backend(self, tmp_path: Path) -> MakeBackend:
        def make(users: Sequence[User]) -> AnyBackend:
            path = tmp_path / "odd %3f#? name.db"
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
                tmp_path,
                path=path.name,
                table='my "users"; --',
                columns={**columns, "profile_url": 'u."x'},
                readers="2",
            )

        return make

    @pytest.fixture
    def failing_backend(self, tmp_path: Path) -> AnyBackend:
        (tmp_path / "garbage.db").write_bytes(b"no database" * 500)
        return make_backend(SqliteBackend, tmp_path, path="garbage.db")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"path": ""},
        {"path": "users.db", "readers": "0"},
        {"path": "users.db", "readers": "17"},
        {"path": "users.db", "table": ""},
        {"path": "users.db", "columns": {"nick": "login"}},
        {"path": "users.db", "tables": "users"},
    ],
    ids=["no path", "empty path", "no reader", "17 readers", "no table", "a column", "an option"],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_backend(SqliteBackend, tmp_path, **options)


def test_parameters_of_queries_are_never_logged() -> None:
    assert not logging.getLogger("aiosqlite").isEnabledFor(logging.DEBUG)


START_ERRORS: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "empty": (b"", {}, "users.db: the file is empty"),
    "garbage": (b"no database" * 500, {}, "users.db: the file is not a database"),
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
    "no such profile_url": (
        USERS,
        {"columns": {"profile_url": "homepage"}},
        'no column "homepage"',
    ),
    "integer card": (
        "CREATE TABLE users (nickname TEXT, card_number bigint, plan TEXT)",
        {},
        'the column "card_number" is declared BIGINT and turns digits into numbers',
    ),
    "string nickname": (
        "CREATE TABLE users (nickname STRING, card_number TEXT, plan TEXT)",
        {},
        'the column "nickname" is declared STRING',
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
    tmp_path: Path, content: str | bytes, options: dict[str, Any], message: str
) -> None:
    """The text says what there is, and no thread is left behind."""
    path = tmp_path / "users.db"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        run(path, content)
    backend = make_backend(SqliteBackend, tmp_path, path="users.db", **options)
    error = await start_error(backend)
    assert error.startswith(f"backend tested: {path}: ")
    assert message in error


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent.db", "no such file; `tornado-idv users import`"),
        (".", "not a regular file; write the path of a SQLite database"),
        ("pipe", "not a regular file; write the path of a SQLite database"),
        ("loop.db", "a loop of symbolic links; make the link lead to a file"),
    ],
    ids=["missing", "directory", "FIFO", "symlink loop"],
)
async def test_what_is_no_file_stops_the_start(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "loop.db").symlink_to("loop.db")
    os.mkfifo(tmp_path / "pipe")
    assert message in await start_error(make_backend(SqliteBackend, tmp_path, path=path))


@pytest.fixture
def public_path() -> Iterator[Path]:
    with public_directory() as path:
        yield path


async def start_error_in_a_read_only_directory(path: Path) -> str:
    path.parent.chmod(0o555)
    with unprivileged():
        return await start_error(make_backend(SqliteBackend, path.parent, path=path.name))


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


async def test_a_journal_left_by_a_crashed_writer_is_explained_at_the_start(tmp_path: Path) -> None:
    path, copied = write(tmp_path / "users.db", ALICE), tmp_path / "copied.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.executescript("PRAGMA cache_size = 1; PRAGMA cache_spill = 1; BEGIN")
        rows = [(f"user{number}", f"{number:04}", "x" * 2000) for number in range(50)]
        writer.executemany("INSERT INTO users VALUES (?, ?, ?, NULL)", rows)
        copied.write_bytes(path.read_bytes())
        copied.with_name("copied.db-journal").write_bytes(
            path.with_name("users.db-journal").read_bytes()
        )
    error = await start_error(make_backend(SqliteBackend, tmp_path, path="copied.db"))
    assert "roll it back by opening the file once for writing" in error
    assert error.endswith("(SQLITE_READONLY_ROLLBACK)")


async def test_failed_open_ends_its_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*args: object) -> None:
        raise sqlite3.OperationalError

    monkeypatch.setattr("aiosqlite.Connection.execute_fetchall", failing)
    write(tmp_path / "users.db", ALICE)
    await start_error(make_backend(SqliteBackend, tmp_path, path="users.db"))


async def test_a_file_replaced_as_it_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connections might lead to either."""
    path = write(tmp_path / "users.db", ALICE)

    async def replacing(*args: Any) -> table.Table:
        found = await inspect(*args)
        write(tmp_path / "new.db", BOB).replace(path)
        return found

    inspect = table.inspect
    monkeypatch.setattr(table, "inspect", replacing)
    error = await start_error(make_backend(SqliteBackend, tmp_path, path="users.db"))
    assert "replaced while it was opened" in error


async def test_a_damaged_database_stops_the_start(tmp_path: Path) -> None:
    """Every page is read before the first lookup, not when a user happens to be on it."""
    path = write(tmp_path / "users.db", ALICE)
    content = bytearray(path.read_bytes())
    content[-4096:] = b"\xff" * 4096
    path.write_bytes(content)
    error = await start_error(make_backend(SqliteBackend, tmp_path, path="users.db"))
    assert "the database is damaged" in error


async def test_a_large_file_with_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idv_sqlite.openfile.CHECKED_SIZE", 0)
    path = tmp_path / "users.db"
    run(path, "CREATE TABLE users (nickname TEXT UNIQUE, card_number TEXT UNIQUE, plan TEXT)")
    run(path, "INSERT INTO users VALUES ('alice', '4000', 'Free')")
    content = bytearray(path.read_bytes())
    content[-4088:] = b"\xff" * 4088  # its rows can be counted
    path.write_bytes(content)
    async with serving(path) as backend:
        with pytest.raises(Broken, match="the database is damaged"):
            await backend.find(ByCard("4000"))


async def test_a_backend_that_is_not_open_is_unavailable(tmp_path: Path) -> None:
    backend = make_backend(SqliteBackend, tmp_path, path="users.db")
    with pytest.raises(Unavailable, match="not open"):
        await backend.find(ByNickname("alice"))
    await backend.close()


CAUTIONS: dict[str, tuple[str, list[str]]] = {
    "usual table": (USERS, []),
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
    "untyped": ("CREATE TABLE users (nickname UNIQUE, card_number UNIQUE, plan)", []),
    "names in another case": (
        "CREATE TABLE Users (Nickname CLOB UNIQUE, CARD_NUMBER CLOB UNIQUE, Plan TEXT)",
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


@pytest.mark.parametrize(("script", "warnings"), list(CAUTIONS.values()), ids=list(CAUTIONS))
async def test_the_start_warns_of_what_is_slow_or_not_sure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str, warnings: list[str]
) -> None:
    run(tmp_path / "users.db", script)
    async with serving(tmp_path / "users.db"):
        logged = levels(caplog, logging.WARNING)
    assert len(logged) == len(warnings)
    for warning in warnings:
        assert any(warning in line for line in logged)


TABLE = "CREATE TABLE users (nickname TEXT{}, card_number TEXT UNIQUE, plan TEXT);"


@pytest.mark.parametrize(
    ("script", "warned"),
    [
        (TABLE.format("") + "CREATE UNIQUE INDEX n ON users (nickname COLLATE NOCASE);", False),
        (TABLE.format(" COLLATE NOCASE UNIQUE"), False),
        (TABLE.format(" UNIQUE"), True),
    ],
    ids=["an index", "a column", "an index that tells case apart"],
)
async def test_a_folded_lookup_without_its_index_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str, *, warned: bool
) -> None:
    """The statement of the warning makes it go away."""
    path = tmp_path / "users.db"
    run(path, script)
    async with serving(path, "fold"):
        assert ("a lookup by nickname reads the whole table" in caplog.text) is warned
    if warned:
        statement = caplog.messages[-1].partition("create one: ")[2]
        assert statement.endswith("COLLATE NOCASE)")
        run(path, statement)
    caplog.clear()
    async with serving(path, "fold"):
        assert levels(caplog, logging.WARNING) == []


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("('alice', '4000', NULL, NULL), ('ALICE', '4001', 'Free', NULL)", "plan"),
        ("('alice', '4000', '', NULL)", "plan"),
        ("('alice', '4000', 7, NULL)", "plan"),
        ("('alice', NULL, 'Free', NULL)", "card number"),
        ("('alice', 4000, 'Free', NULL)", "card number"),
        ("('alice', '4000', 'Free', '')", "profile URL"),
        ("('alice', '4000', 'Free', x'00')", "profile URL"),
        ("('alice', '4000', CAST(x'ff' AS TEXT), NULL)", "not valid UTF-8"),
        ("('alice', '4000', 'Free', NULL), ('alice', '4001', 'Free', NULL)", "two rows"),
    ],
    ids=[
        *("plan NULL", "plan empty", "plan a number", "card NULL", "card a number"),
        *("URL empty", "URL a blob", "not UTF-8", "twice"),
    ],
)
async def test_a_row_that_cannot_be_right_is_broken(tmp_path: Path, row: str, reason: str) -> None:
    path = tmp_path / "users.db"
    run(path, "CREATE TABLE users (nickname, card_number, plan, profile_url)")
    run(path, f"INSERT INTO users VALUES {row}")
    async with serving(path) as backend:
        with pytest.raises(Broken, match=reason) as caught:
            await backend.find(ByNickname("alice"))
        assert "alice" not in repr(caught.value)
        assert caught.value.__cause__ is None


NOT_TEXT: dict[str, tuple[str, str]] = {
    "real": ("CREATE TABLE users (nickname, card_number, plan)", "123.0, 4000.0"),
    "ANY of a STRICT table": (
        "CREATE TABLE users (nickname ANY, card_number ANY, plan TEXT) STRICT",
        "123, 4000",
    ),
    "bytes in text": (
        "CREATE TABLE users (nickname TEXT UNIQUE, card_number VARCHAR UNIQUE, plan)",
        "x'313233', x'34303030'",
    ),
    "bytes in text without case": (
        """CREATE TABLE users (
            nickname TEXT COLLATE NOCASE PRIMARY KEY, card_number TEXT, plan
        ) WITHOUT ROWID""",
        "x'313233', x'34303030'",
    ),
    "bytes in a database of UTF-16": (
        "PRAGMA encoding = 'UTF-16le'; CREATE TABLE users (nickname TEXT, card_number TEXT, plan)",
        "x'313233', x'34303030'",
    ),
    "bytes of UTF-16": (
        "PRAGMA encoding = 'UTF-16le'; CREATE TABLE users (nickname TEXT, card_number TEXT, plan)",
        "x'310032003300', x'3400300030003000'",
    ),
}


@pytest.mark.parametrize(("script", "row"), list(NOT_TEXT.values()), ids=list(NOT_TEXT))
async def test_a_user_without_text_is_broken(tmp_path: Path, script: str, row: str) -> None:
    """The user is there: "not known" would be wrong, and lost zeros cannot be restored."""
    path = tmp_path / "users.db"
    run(path, script)
    run(path, f"INSERT INTO users VALUES ({row}, 'Free'), ('bob', '4001', 'Free')")
    async with serving(path) as backend:
        queries: list[Query] = [ByNickname("123"), ByCard("4000")]
        if "x'" not in row:  # a number may have lost its leading zeros
            queries += [ByNickname("0123"), ByCard("04000")]
        for query in queries:
            with pytest.raises(Broken, match="is not text"):
                await backend.find(query)
        for absent in (ByNickname("12"), ByNickname("00"), ByCard("40000"), ByCard("400")):
            assert await backend.find(absent) is None
        assert await backend.find(ByCard("4001")) == User("Free", "4001", "bob")
        assert await backend.find(ByCard("04001")) is None


@pytest.mark.parametrize("case", ["preserve", "fold"])
async def test_a_nickname_added_with_an_at_sign_is_broken(tmp_path: Path, case: str) -> None:
    """Alone and in a batch. The table is checked for such nicknames only when it is opened."""
    path = tmp_path / "users.db"
    write(path, ALICE)
    async with serving(path, case) as backend:
        run(path, "INSERT INTO users VALUES ('@carol', '7', 'Free', NULL)")
        run(path, f"INSERT INTO users VALUES ('@{ALICE.nickname}', '8', 'Free', NULL)")
        queries = [ByNickname("carol"), ByCard("7"), ByNickname("dave"), ByNickname(ALICE.nickname)]
        lookups = [backend.find(each) for each in queries]
        *broken, unknown, found = await asyncio.gather(*lookups, return_exceptions=True)
        assert ["stored with a leading @" in repr(each) for each in broken] == [True, True]
        assert (unknown, found) == (None, ALICE)


async def test_at_sign_removed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fetch = write(tmp_path / "users.db"), Reader.fetch

    async def repaired(*args: Any) -> Any:
        rows = await fetch(*args)
        run(path, "UPDATE users SET nickname = substr(nickname, 2) WHERE nickname LIKE '@%'")
        return rows

    async with serving(path) as backend:
        insert(path, User("Free", "4000", "@alice"))
        monkeypatch.setattr(Reader, "fetch", repaired)
        assert await backend.find(ByNickname("alice")) == User("Free", "4000", "alice")


async def test_a_nickname_that_became_a_number_with_a_sign_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "users.db"
    run(path, "CREATE TABLE users (nickname, card_number, plan)")
    run(path, "INSERT INTO users VALUES (-5, '4000', 'Free')")
    async with serving(path) as backend:
        with pytest.raises(Broken, match="nickname of a row is not text"):
            await backend.find(ByNickname("-5"))


async def test_a_huge_number_is_found_by_no_query_that_it_does_not_equal(tmp_path: Path) -> None:
    """Python converts no text of 5,000 digits to an integer, and raises a ValueError."""
    path, huge = tmp_path / "users.db", "9" * 5000
    run(path, "CREATE TABLE users (nickname, card_number, plan)")
    run(path, f"INSERT INTO users VALUES ('huge', {huge}, 'Free'), ('alice', '4000', 'Free')")
    async with serving(path) as backend:
        assert await backend.find(ByNickname("alice")) == User("Free", "4000", "alice")
        assert await backend.find(ByCard("4000")) == User("Free", "4000", "alice")
        for absent in ("4001", "9", "8" * 19, "-" + huge):
            assert await backend.find(ByCard(absent)) is None
        assert await backend.find(ByNickname(huge)) is None
        for query in (ByNickname("huge"), ByCard(huge), ByCard("0" + huge)):
            with pytest.raises(Broken, match="card number of a row is not text"):
                await backend.find(query)


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
async def test_bytes_that_fold_to_one_nickname_are_broken(tmp_path: Path, encoding: str) -> None:
    run(
        tmp_path / "users.db",
        f"""PRAGMA encoding = '{encoding}';
        CREATE TABLE users (nickname TEXT, card_number TEXT, plan TEXT);
        INSERT INTO users VALUES ('Alice', '1', 'Free'), ('alicE', '2', 'Free'),
            (X'{b"Carol".hex()}', '3', 'Free'), ('BOB', '4', 'Free')""",
    )
    async with serving(tmp_path / "users.db", "fold") as backend:
        for nickname, reason in (("alice", "two rows"), ("carol", "is not text")):
            with pytest.raises(Broken, match=reason):
                await backend.find(ByNickname(nickname))
        assert await backend.find(ByNickname("bob")) == User("Free", "4", "BOB")
        assert await backend.find(ByNickname("dave")) is None


async def test_users_that_differ_in_case_alone_are_two(tmp_path: Path) -> None:
    """Also where the column's collation holds them for one."""
    path = tmp_path / "users.db"
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


def examples() -> Iterable[Any]:
    scripts = re.findall(r"```sql\n(.*?)```", README, re.DOTALL)
    entries = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    for script, entry in zip(scripts, entries, strict=True):
        yield pytest.param(script, entry, id=re.findall(r"name: (\w+)", entry)[0])


@pytest.mark.parametrize(("script", "entry"), list(examples()))
async def test_every_example_of_the_readme_finds_its_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str, entry: str
) -> None:
    run(tmp_path / "users.db", script)
    (options,) = yaml_loader.read(entry.encode(), "README.md")["backends"]
    async with open_backends([make_backend(SqliteBackend, tmp_path, **options)]) as (backend,):
        assert await backend.find(ByNickname("alice")) == ALICE
        assert await backend.find(ByCard("4000123412341234")) == ALICE
        assert await backend.find(ByNickname("Alice")) is None
    assert levels(caplog, logging.WARNING) == []


def test_the_readme_has_every_option() -> None:
    fields = SqliteBackend.options_type.model_fields
    columns = fields["columns"].default
    own = {
        "path",
        "table",
        "readers",
        "max_removed",
        *(f"columns.{name}" for name in type(columns).model_fields),
    }
    assert set(re.findall(r"^\| `([a-z_.]+)` \|", README, re.MULTILINE)) == own

"""Notifications of changes: ``tornado-idv postgres init``, and what is purged."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from idv_postgres.listener import Listener
from support.databases.postgres_backends import backend_of, serving
from support.databases.postgres_server import ALICE, BOB, USERS, Database
from support.processes.process import Invoke
from support.processes.service import CONFIG
from tornado_idv import ByCard, ByNickname, Query
from tornado_idv.registry import opened_backend

pytestmark = pytest.mark.slow

APPLIED = "backend members: the table and its notifications are up to date\n"


def write_config(folder: Path, database: Database, more: str = "") -> Path:
    """A configuration with the superuser's dsn, as one makes the table."""
    path = folder / "config.yaml"
    dsn = database.server.dsn(database.name, "postgres")
    backend = f"  - {{name: members, kind: postgres, dsn: '{dsn}'{more}}}\n"
    path.write_text(CONFIG + backend, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listener, "batch_interval", 0.02)
    monkeypatch.setattr(Listener, "check_interval", 0.3)
    monkeypatch.setattr(Listener, "pause", 0.05)


@asynccontextmanager
async def listening(database: Database) -> AsyncIterator[asyncio.Queue[set[Query]]]:
    """Listen, and yield the queries of each further purge; an empty set is one of everything."""
    backend = backend_of(database, notify={})
    changes: asyncio.Queue[set[Query]] = asyncio.Queue()
    backend.on_change(lambda *queries: changes.put_nowait({*queries}))
    async with opened_backend(backend):
        assert await changes.get() == set()
        assert backend.revision  # a snapshot of an older session is not used
        yield changes


@pytest.fixture
def apply_init(database: Database, tmp_path: Path, invoke: Invoke) -> Callable[[], Any]:
    path = write_config(tmp_path, database)

    async def apply() -> None:
        done = await asyncio.to_thread(invoke, "postgres", "init", "--apply", "-c", path)
        assert (done.stdout, done.stderr) == (APPLIED, "")

    return apply


def test_init_prints_sql_that_makes_a_table_without_warnings(
    database: Database, tmp_path: Path, invoke: Invoke
) -> None:
    """It can be run again, and ``--apply`` does the same."""
    database.clear()
    columns = "{nickname: 'a \"nick', profile_url: url}"
    more = f", table: my.peo'ple, columns: {columns}, notify: {{channel: it's}}"
    path = write_config(tmp_path, database, more)
    database.run("DROP SCHEMA IF EXISTS my CASCADE; CREATE SCHEMA my")
    printed = invoke("postgres", "init", "-c", path)
    assert (printed.exit_code, printed.stderr) == (0, "")
    database.run(f"SET client_min_messages = warning; {printed.stdout} {printed.stdout}")
    checked = invoke("check", "-c", path)
    assert (checked.exit_code, checked.stderr) == (0, "")
    collated = "SELECT column_name FROM information_schema.columns WHERE collation_name = 'C'"
    assert database.run(f"{collated} AND table_schema = 'my'") == 'a "nick\ncard_number'
    functions = "SELECT pronamespace::regnamespace FROM pg_proc WHERE proname LIKE 'peo''ple%'"
    assert database.run(functions) == "my"
    applied = invoke("postgres", "init", "--apply", "--name", "members", "-c", path)
    assert applied.stdout == APPLIED


def test_init_makes_all_triggers_of_a_table_with_a_long_name(
    database: Database, tmp_path: Path, invoke: Invoke
) -> None:
    database.clear()
    dsn = database.server.dsn(database.name, "postgres")
    path = write_config(tmp_path, database, f", table: {'aüü' * 12}, notify: {{dsn: '{dsn}'}}")
    path.write_text(path.read_text().replace(f", dsn: '{dsn}'", ", dsn: 'postgresql://h:1/x'"))
    assert invoke("postgres", "init", "--apply", "--name", "members", "-c", path).exit_code == 0
    names = database.run(f"SELECT tgname FROM pg_trigger WHERE tgrelid = '{'aüü' * 12}'::regclass")
    assert len(names.splitlines()) == 4


@pytest.mark.parametrize(
    ("backend", "arguments", "message"),
    [
        ("kind: yaml, path: u.yaml", [], "has no backend of the kind postgres"),
        ("kind: postgres, dsn: 'postgresql://h/'", ["--name", "b"], "postgres with the name b"),
        (
            "kind: postgres, dsn: 'postgresql://h/x'}\n  - {name: b, kind: postgres, dsn: 'postgres://h/'",
            [],
            "several backends have the kind postgres; choose one with --name",
        ),
        ("kind: postgres, dsn: 'postgresql://h/x', by_card: 'SELECT $1'", [], "of your queries"),
    ],
    ids=["another kind", "another name", "two", "queries"],
)
def test_init_says_why_it_cannot_make_the_table(
    tmp_path: Path, invoke: Invoke, backend: str, arguments: list[str], message: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{CONFIG}  - {{name: a, {backend}}}\n", encoding="utf-8")
    result = invoke("postgres", "init", "-c", path, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr


CHANGES: dict[str, tuple[str, set[Query]]] = {
    "insert": ("INSERT INTO users VALUES ('dan', '7', 'Free')", {ByNickname("dan"), ByCard("7")}),
    "update": (
        "UPDATE users SET nickname = 'alicia', card_number = '78' WHERE nickname = 'alice'",
        {*(ByNickname("alice"), ByNickname("alicia")), *(ByCard(ALICE.card_number), ByCard("78"))},
    ),
    "delete": (
        "DELETE FROM users WHERE nickname = 'bob'",
        {ByNickname("bob"), ByCard(BOB.card_number)},
    ),
    "truncate": ("TRUNCATE users", set()),
    "replica": (
        (
            "SET session_replication_role = replica; DELETE FROM users WHERE nickname = 'bob';"
            "RESET session_replication_role"
        ),
        {ByNickname("bob"), ByCard(BOB.card_number)},
    ),
    "many rows": (
        "INSERT INTO users SELECT 'u' || n, n::text, 'Free' FROM generate_series(1, 101) AS n",
        set(),
    ),
    "long card": ("UPDATE users SET card_number = repeat('ü', 4000) WHERE nickname = 'bob'", set()),
}


async def test_each_change_is_reported_for_the_users_it_is_about(
    database: Database, apply_init: Callable[[], Any]
) -> None:
    database.clear()
    await apply_init()
    modes = "SELECT DISTINCT tgenabled FROM pg_trigger WHERE tgrelid = 'users'::regclass"
    assert database.run(modes) == "A"  # always
    enable = ";".join(
        f"ALTER TABLE users ENABLE ALWAYS TRIGGER users_notify_{event}"
        for event in ("insert", "update", "delete", "truncate")
    )
    async with listening(database) as changes:
        for name, (sql, expected) in CHANGES.items():
            database.run(
                "BEGIN; ALTER TABLE users DISABLE TRIGGER USER; DELETE FROM users;"
                f"INSERT INTO users VALUES ('alice', '{ALICE.card_number}', 'Free'), "
                f"('bob', '{BOB.card_number}', 'Pro'); {enable}; COMMIT"
            )
            database.run("UPDATE users SET plan = plan WHERE false")
            database.run(sql)
            assert await changes.get() == expected, name
            if "TRUNCATE" in sql:
                assert await changes.get() == set()  # the file is another one
    assert changes.empty()


PARTITIONED = """
CREATE TABLE users (nickname text, card_number text, plan text, profile_url text)
  PARTITION BY LIST (plan);
CREATE TABLE free PARTITION OF users FOR VALUES IN ('Free');
CREATE TABLE pro PARTITION OF users FOR VALUES IN ('Pro');
INSERT INTO users VALUES ('alice', '1', 'Free'), ('bob', '2', 'Pro');
"""
UNSEEN: dict[str, tuple[str, list[str]]] = {
    "a partition": (
        PARTITIONED,
        [
            "DELETE FROM pro WHERE nickname = 'bob'",
            (
                "SET session_replication_role = replica; UPDATE free SET card_number = '7';"
                "RESET session_replication_role"
            ),
            "TRUNCATE free",
            "ALTER TABLE users DETACH PARTITION pro",
            "CREATE TABLE best PARTITION OF users FOR VALUES IN ('Best')",
            "INSERT INTO best VALUES ('dave', '4', 'Best')",
        ],
    ),
    "another table": (
        USERS,
        [
            (
                "CREATE TABLE users_new (LIKE users INCLUDING ALL);"
                "INSERT INTO users_new VALUES ('alice', '1', 'Free');"
                "BEGIN; ALTER TABLE users RENAME TO users_old;"
                "ALTER TABLE users_new RENAME TO users; COMMIT"
            ),
            "CREATE TABLE more () INHERITS (users)",
            "VACUUM FULL users",
        ],
    ),
    "a view": (
        (
            "CREATE TABLE people (nickname text, card_number text, plan text);"
            "CREATE VIEW users AS SELECT * FROM people;"
        ),
        ["TRUNCATE people"],
    ),
}


@pytest.mark.parametrize(("script", "statements"), list(UNSEEN.values()), ids=list(UNSEEN))
async def test_everything_is_purged_after_changes_past_the_triggers_of_the_table(
    database: Database, apply_init: Callable[[], Any], script: str, statements: Any
) -> None:
    database.clear(script)
    if "VIEW" not in script:
        await apply_init()
    async with listening(database) as changes:
        for statement in statements:
            await asyncio.sleep(0.05)
            while not changes.empty():
                changes.get_nowait()
            await asyncio.to_thread(database.run, statement)
            async with asyncio.timeout(10):
                while await changes.get():
                    pass


@pytest.mark.parametrize("key", ["LIST (nickname)", "RANGE ((lower(nickname)))"])
async def test_init_makes_what_a_partition_key_allows(
    database: Database, apply_init: Callable[[], Any], caplog: pytest.LogCaptureFixture, key: str
) -> None:
    """And can be run again; the start advises nothing that cannot be run."""
    columns = "nickname text, card_number text, plan text, profile_url text"
    database.clear(
        f"CREATE TABLE users ({columns}) PARTITION BY {key};"
        "CREATE TABLE rest PARTITION OF users DEFAULT;"
    )
    async with serving(database):
        advised = [each.getMessage().partition("create one: ")[2] for each in caplog.records]
    assert not any(advised)
    for _ in range(2):
        await apply_init()
    caplog.clear()
    async with serving(database):
        assert caplog.text == ""

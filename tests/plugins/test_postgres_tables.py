"""Kinds of tables that the PostgreSQL backend serves, or refuses."""

import asyncio
from typing import Any

import pytest

from idv_postgres.backend import PostgresBackend
from support.databases.postgres_backends import backend_of, serving
from support.databases.postgres_server import USERS, Database
from support.fakes.outcomes import outcome
from support.http.http_server import until
from tornado_idv import ByCard, ByNickname, StartError
from tornado_idv.registry import opened_backend

pytestmark = pytest.mark.slow

ROWS = "INSERT INTO users VALUES ('alice', '0012', 'Free'), ('Bob', '13', 'Pro');"


UNLOGGED = USERS.replace("TABLE users", "UNLOGGED TABLE people")
PARTITIONS = """
CREATE TABLE people (nickname text, card_number text, plan text) PARTITION BY LIST (plan);
CREATE TABLE free PARTITION OF people FOR VALUES IN ('Free');
CREATE UNLOGGED TABLE pro PARTITION OF people FOR VALUES IN ('Pro');
"""
UNLOGGED_TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "view": (
        f"{UNLOGGED} CREATE VIEW v AS SELECT * FROM people; CREATE VIEW users AS TABLE v;",
        {},
    ),
    "materialized view": (f"{UNLOGGED} CREATE MATERIALIZED VIEW users AS TABLE people;", {}),
    "child": (f"{USERS} CREATE UNLOGGED TABLE child () INHERITS (users);", {}),
    "partition that a query leaves out": (
        PARTITIONS,
        {"by_card": "SELECT * FROM people WHERE card_number = $1 AND plan = 'Free'"},
    ),
}


@pytest.mark.parametrize(
    ("script", "options"), list(UNLOGGED_TABLES.values()), ids=list(UNLOGGED_TABLES)
)
async def test_table_that_a_crash_empties_stops_the_start(
    database: Database, script: str, options: dict[str, Any]
) -> None:
    database.clear(script)
    backend = backend_of(database, **options)
    with pytest.raises(StartError, match="is UNLOGGED: it is empty after a crash") as caught:
        await backend.open()
    await asyncio.to_thread(database.run, str(caught.value).rpartition("; ")[2])
    async with opened_backend(backend):
        assert await outcome(backend, ByCard("1")) == "not found"


async def test_unlogged_relation_whose_rows_are_not_read_is_no_error(database: Database) -> None:
    """A partitioned table has none of its own; a rule writes another one."""
    logged = PARTITIONS.replace("UNLOGGED TABLE pro", "TABLE pro")
    rule = "CREATE RULE r AS ON UPDATE TO users DO ALSO INSERT INTO audit SELECT NEW.nickname;"
    scripts = {"users": f"{USERS} CREATE UNLOGGED TABLE audit (name text); {rule}"}
    if int(database.run("SHOW server_version_num")) < 18_00_00:
        scripts["people"] = logged.replace("TABLE people", "UNLOGGED TABLE people")
    for table, script in scripts.items():
        database.clear(script)
        async with serving(database, table=table) as backend:
            assert await outcome(backend) == "not found"


async def test_table_that_becomes_unlogged_is_served_no_more(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresBackend, "check_interval", 0.05)
    database.clear(f"{USERS} {ROWS}")
    async with serving(database) as backend:
        assert await outcome(backend) == "found"
        await asyncio.to_thread(database.run, "ALTER TABLE users SET UNLOGGED")
        await until(lambda: "is UNLOGGED" in str(backend.problem))


COLUMNS = {
    "name": "nickname name UNIQUE, card_number name UNIQUE, plan name",
    "domain of a domain": "nickname inner_d UNIQUE, card_number outer_d UNIQUE, plan plan_d",
    "nondeterministic": (
        "nickname text COLLATE caseless UNIQUE, card_number varchar COLLATE caseless UNIQUE, "
        "plan text COLLATE caseless"
    ),
    "domain of citext": "nickname citext_d UNIQUE, card_number text UNIQUE, plan text",
    "domain of char": "nickname char_d UNIQUE, card_number char_d UNIQUE, plan char_d",
}
TYPES = """
CREATE DOMAIN inner_d AS text; CREATE DOMAIN outer_d AS inner_d NOT NULL;
CREATE TYPE plans AS ENUM ('Free', 'Pro'); CREATE DOMAIN plan_d AS plans;
CREATE DOMAIN citext_d AS extensions.citext; CREATE DOMAIN char_d AS char(10);
CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
"""


@pytest.mark.parametrize("columns", list(COLUMNS.values()), ids=list(COLUMNS))
@pytest.mark.parametrize("case", ["preserve", "fold"])
async def test_text_types_are_compared_exactly(database: Database, columns: str, case: str) -> None:
    """Alone, in a shared query and in a query of the operator's own."""
    script = f"{TYPES} CREATE TABLE users ({columns}); {ROWS}"
    queries = [*map(ByNickname, ["alice", "Alice", "bob", "x" * 64]), *map(ByCard, ["0012", "12"])]
    bob = "found" if case == "fold" else "not found"
    expected = ["found", "not found", bob, "not found", "found", "not found"]
    database.clear(script)
    async with serving(database, case) as backend:
        assert [await outcome(backend, each) for each in queries] == expected
        assert await asyncio.gather(*(outcome(backend, each) for each in queries)) == expected
    where = 'nickname::text COLLATE "C" = $1::text'
    async with serving(database, by_nickname=f"SELECT * FROM users WHERE {where}") as own:
        assert [await outcome(own, each) for each in queries[:2]] == ["found", "not found"]


OWN = "SELECT nickname, card_number, plan FROM users WHERE nickname = $1::text"


@pytest.mark.parametrize("options", [{}, {"by_nickname": OWN}], ids=["table", "own query"])
async def test_card_number_that_becomes_a_number_is_served_by_no_query(
    database: Database, options: dict[str, str]
) -> None:
    """Before the next check notices it. Without its zeros, it may be another user's."""
    database.clear(f"{TYPES} CREATE TABLE users ({COLUMNS['name']}); {ROWS}")
    async with serving(database, **options) as backend:
        assert await outcome(backend) == "found"
        database.run("ALTER TABLE users ALTER card_number TYPE int USING card_number::text::int")
        for kind in [*backend.serves, ByNickname]:
            assert "has a type other than text" in await outcome(backend, kind("12"))


async def test_folded_citext_is_compared_by_collation_of_the_database(database: Database) -> None:
    """In Turkish, the small letter of I is not i. The collation of the column has no effect."""
    if int(database.run("SHOW server_version_num")) < 15_00_00:
        pytest.skip("needs PostgreSQL 15, for a database with a collation of ICU")
    turkish = Database(database.server, "turkish")
    create = "CREATE DATABASE turkish TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'tr'"
    database.run(f"{create} LC_COLLATE 'C' LC_CTYPE 'C' ENCODING 'UTF8'")
    table = 'CREATE TABLE users (nickname citext COLLATE "C", card_number text, plan text)'
    turkish.run(f"CREATE EXTENSION citext; {table}; GRANT SELECT ON users TO idv; {ROWS}")
    async with serving(turkish, "fold") as backend:
        turkish.run("UPDATE users SET nickname = 'ALI' WHERE nickname = 'alice'")
        assert await outcome(backend, ByNickname("ali")) == "found"
    turkish.close()
    database.run("DROP DATABASE turkish WITH (FORCE)")


async def test_at_signs_are_seen_under_a_nondeterministic_collation_and_repaired(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    columns = COLUMNS["nondeterministic"]
    database.clear(f"{TYPES} CREATE TABLE users ({columns}); {ROWS.replace('alice', '@alice')}")
    async with serving(database) as backend:
        assert "is stored with a leading @" in await outcome(backend)
        (warning,) = [each.getMessage() for each in caplog.records]
        assert "alice" not in warning
        await asyncio.to_thread(database.run, warning.rpartition("this repairs them: ")[2])
        assert await outcome(backend) == "found"

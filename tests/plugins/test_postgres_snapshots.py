"""Lookups in PostgreSQL that call functions, while the table is filled again in transactions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from support.databases.postgres_backends import serving
from support.databases.postgres_server import ALICE, PASSWORD, USERS, Database
from support.fakes.outcomes import outcome
from support.http.http_server import until
from tornado_idv import ByCard, ByNickname

pytestmark = pytest.mark.slow

TABLE = USERS.replace("users", "people")
ROWS = f"INSERT INTO people VALUES ('alice', '{ALICE.card_number}', 'Free');"
FUNCTIONS = """
CREATE FUNCTION find_user(name text) RETURNS SETOF people STABLE LANGUAGE plpgsql AS
  $$ BEGIN RETURN QUERY SELECT * FROM people WHERE nickname = name; END $$;
CREATE FUNCTION "Find user"(name text) RETURNS SETOF people STABLE LANGUAGE sql
  SET statement_timeout = 0 AS $$ SELECT * FROM people WHERE nickname = name $$;
CREATE FUNCTION has_plän(name text) RETURNS boolean STABLE LANGUAGE plpgsql AS
  $$ BEGIN RETURN EXISTS (SELECT FROM people WHERE nickname = name); END $$;
CREATE TABLE names (nickname text PRIMARY KEY, card_number text UNIQUE, plan text);
INSERT INTO names VALUES ('alice', '1', 'Free');
CREATE VIEW users AS SELECT * FROM names WHERE has_plän(nickname);
"""
SOURCES: dict[str, dict[str, Any]] = {
    "function": {"by_nickname": "SELECT * FROM find_user($1)"},
    "SQL function": {"by_nickname": 'SELECT * FROM "Find user" ($1)'},
    "view": {},
    "table": {"table": "people"},
}
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.fixture(autouse=True)
def people(database: Database) -> None:
    """Snapshots are from after the TRUNCATE, whatever the isolation is by default."""
    isolation = f'ALTER DATABASE "{database.name}" SET default_transaction_isolation'
    database.run(f"{isolation} = 'repeatable read'")
    database.clear(f"{TABLE} {ROWS} {FUNCTIONS}")


@asynccontextmanager
async def loading(database: Database, number: int) -> AsyncIterator[list[asyncpg.Connection]]:
    dsn = database.server.dsn(database.name, "postgres")
    loads = [await asyncpg.connect(dsn) for _ in range(number)]
    try:
        yield loads
    finally:
        for each in loads:
            each.terminate()


@pytest.mark.parametrize("prepared", ["true", "false"])
@pytest.mark.parametrize("source", list(SOURCES.values()), ids=list(SOURCES))
async def test_user_is_found_while_the_table_is_filled_again_and_again(
    database: Database, source: dict[str, Any], prepared: str
) -> None:
    """The second transaction begins to wait before the first query of the lookup has ended."""
    async with (
        serving(database, prepared_statements=prepared, **source) as backend,
        loading(database, 2) as (first, second),
    ):
        assert await outcome(backend) == "found"
        await first.execute("BEGIN; TRUNCATE people")
        lookup = asyncio.create_task(outcome(backend))
        await until(lambda: database.run(WAITING) == "1")
        truncating = asyncio.create_task(second.execute("BEGIN; TRUNCATE people"))
        await until(lambda: database.run(WAITING) == "2")
        await first.execute(f"{ROWS} COMMIT")
        await asyncio.wait([lookup, truncating], return_when=asyncio.FIRST_COMPLETED)
        if truncating.done():
            await until(lambda: database.run(WAITING) == "1" or lookup.done())
            await second.execute(f"{ROWS} COMMIT")
        assert await lookup == "found"
        await truncating


@pytest.mark.parametrize("prepared", ["true", "false"])
async def test_user_of_a_foreign_table_is_found(database: Database, prepared: str) -> None:
    """The foreign server keeps the snapshot from before the wait until its transaction ends."""
    server = f"host '127.0.0.1', port '{database.server.port}', dbname '{database.name}'"
    database.run(f"""DROP EXTENSION IF EXISTS postgres_fdw CASCADE;
        CREATE EXTENSION postgres_fdw SCHEMA extensions;
        CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({server});
        CREATE USER MAPPING FOR idv SERVER s OPTIONS (user 'idv', password '{PASSWORD}');
        CREATE TABLE others (LIKE people) PARTITION BY LIST (nickname);
        CREATE FOREIGN TABLE f PARTITION OF others FOR VALUES IN ('alice') SERVER s
          OPTIONS (table_name 'people')""")
    options = {"prepared_statements": prepared, "table": "others"}
    async with serving(database, **options) as backend, loading(database, 1) as (load,):
        await load.execute("BEGIN; TRUNCATE people")
        lookup = asyncio.create_task(outcome(backend))
        await until(lambda: database.run(WAITING) == "1")
        await load.execute(f"{ROWS} COMMIT")
        assert await lookup == "found"


async def test_shared_queries_repeat_what_they_do_not_find(database: Database) -> None:
    """Each alone; two of them wait, and two batches."""
    queries = [*map(ByNickname, ["alice", "bob", "alice", "carol"]), ByCard("1"), ByCard("2")] * 2
    expected = ["found", "not found", "found", "not found", "found", "not found"] * 2
    async with serving(database, pool={"max": "4"}) as backend, loading(database, 1) as (load,):
        await load.execute("BEGIN; TRUNCATE people")
        lookups = [asyncio.create_task(outcome(backend, query)) for query in queries]
        await until(lambda: database.count_queries("wait_event_type = 'Lock'") == 4)
        await load.execute(f"{ROWS} COMMIT")
        assert await asyncio.gather(*lookups) == expected


async def test_lookup_without_a_function_is_one_query(database: Database) -> None:
    """Functions of the server itself read no table."""
    columns = "lower(nickname) AS nickname, lpad(card_number, 4) AS card_number, plan"
    query = f"SELECT {columns} FROM people WHERE nickname = $1"
    async with serving(database, by_nickname=query, pool={"max": "1"}) as backend:
        assert await outcome(backend, ByNickname("bob")) == "not found"
        assert database.count_queries("query LIKE 'SELECT q.%'") == 1
    async with serving(database, **SOURCES["function"], pool={"max": "1"}) as backend:
        assert await outcome(backend, ByNickname("bob")) == "not found"
        assert database.count_queries("query LIKE 'COMMIT%'") == 1
    async with serving(database, pool={"max": "1"}) as backend:
        lookups = [outcome(backend, each) for each in map(ByNickname, ["bob", "alice", "carl"])]
        assert await asyncio.gather(*lookups) == ["not found", "found", "not found"]
        assert database.count_queries("query LIKE 'COMMIT%'") == 1  # "bob" goes first

"""The table of the PostgreSQL backend is the one of the start, whatever its name means later."""

import asyncio
import logging
from typing import Any
from unittest import mock

import pytest

from idv_postgres.backend import PostgresBackend
from idv_postgres.relation import Relation, resolve
from support.databases import postgres_backends
from support.databases.postgres_server import ALICE, BOB, PASSWORD, USERS, Database
from support.fakes.outcomes import outcome
from support.http.http_server import until
from tornado_idv import Broken, ByCard, ByNickname, StartError
from tornado_idv.registry import opened_backend

pytestmark = pytest.mark.slow

ROLE = "shadowed"
"""A role of these tests alone, since it has a schema and settings of its own."""
EMPTY = USERS.replace("users", "shadowed.users")
DISCONNECT = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
    f"WHERE usename = '{ROLE}' AND datname = current_database()"
)


@pytest.fixture(autouse=True)
def users(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with this table, and a role without settings."""
    monkeypatch.setattr(PostgresBackend, "retry_interval", 0.05)
    database.run(
        f"DROP SCHEMA IF EXISTS {ROLE} CASCADE; DROP SCHEMA IF EXISTS other CASCADE;"
        f"DO $$ BEGIN CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}';"
        " EXCEPTION WHEN duplicate_object THEN END $$;"
        f"ALTER ROLE {ROLE} RESET search_path; ALTER ROLE {ROLE} CONNECTION LIMIT -1"
    )
    database.clear(f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {ROLE};")
    database.run(f"{USERS} {rows()}")


def backend_of(database: Database, **options: Any) -> PostgresBackend:
    dsn = database.server.dsn(database.name, ROLE)
    return postgres_backends.backend_of(database, dsn=dsn, **options)


def rows(table: str = "users") -> str:
    return (
        f"INSERT INTO {table} VALUES ('alice', '{ALICE.card_number}', 'Free'),"
        f" ('Bob', '{BOB.card_number}', 'Pro');"
    )


SHADOW = f"CREATE SCHEMA {ROLE} AUTHORIZATION {ROLE}; {EMPTY}"
"""A schema that is named like the role comes first in its path."""
OTHER_PATH = (
    f"CREATE SCHEMA other; GRANT USAGE ON SCHEMA other TO {ROLE};"
    f"CREATE TABLE other.users (); ALTER ROLE {ROLE} SET search_path = other, public"
)


async def test_table_of_the_start_is_read_when_its_name_means_another_one(
    database: Database,
) -> None:
    backend = backend_of(database, pool={"min": "1", "max": "4"})
    async with opened_backend(backend):
        assert await outcome(backend) == "found"
        await asyncio.to_thread(database.run, OTHER_PATH)
        await asyncio.to_thread(database.run, DISCONNECT)
        async with asyncio.timeout(10):
            while (last := await outcome(backend)) != "found":
                assert last.startswith("unavailable"), last
        ended = await asyncio.gather(*(outcome(backend) for _ in range(20)))
        assert set(ended) == {"found"}


async def test_name_that_means_another_table_is_an_error_until_it_is_repaired(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresBackend, "check_interval", 0.05)
    backend = backend_of(database)
    async with opened_backend(backend):
        await asyncio.to_thread(database.run, SHADOW)
        await until(lambda: backend.problem is not None)
        assert '"users" is ' in str(backend.problem)
        assert "but meant public.users when the service started" in str(backend.problem)
        assert (await outcome(backend)).startswith('broken: "users" is ')
        await asyncio.to_thread(database.run, f"DROP SCHEMA {ROLE} CASCADE")
        await until(lambda: backend.problem is None)
        assert await outcome(backend) == "found"
    (error,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert "name the schema in the option `table`" in error


async def test_name_in_several_schemas_is_a_warning_and_an_error_if_the_first_is_empty(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(database.run, SHADOW)
    advice = "name the schema in the option `table`"
    with pytest.raises(StartError, match=f'schema "public"; {advice}, since {ROLE}.users is empty'):
        await backend_of(database).open()
    async with opened_backend(backend_of(database, table="public.users")) as backend:
        assert await outcome(backend) == "found"
        assert caplog.text == ""
    await asyncio.to_thread(database.run, f"INSERT INTO {ROLE}.users SELECT * FROM public.users")
    async with opened_backend(backend_of(database)):
        (warning,) = [each.getMessage() for each in caplog.records]
    assert warning.endswith(
        f'"users" is {ROLE}.users, and there is another table of this name in the schema "public"; '
        f"{advice}"
    )


async def test_own_queries_read_the_schemas_of_the_start(database: Database) -> None:
    backend = backend_of(
        database, by_nickname="SELECT * FROM users WHERE nickname = $1", pool={"min": "0"}
    )
    async with opened_backend(backend):
        await asyncio.to_thread(database.run, OTHER_PATH)
        assert await outcome(backend) == "found"
        await asyncio.to_thread(database.run, f"ALTER ROLE {ROLE} CONNECTION LIMIT 0")
        await asyncio.to_thread(database.run, DISCONNECT)
        await outcome(backend)
        await until(lambda: backend.problem is not None)
        await asyncio.to_thread(database.run, f"ALTER ROLE {ROLE} CONNECTION LIMIT -1")
        await until(lambda: backend.problem is None)
        assert await outcome(backend) == "found"


SWAP = (
    "CREATE TABLE users_new (LIKE users INCLUDING ALL); {rows}"
    "BEGIN; ALTER TABLE users RENAME TO users_old; ALTER TABLE users_new RENAME TO users; {after}"
    "COMMIT"
)
NEW_ROWS = "INSERT INTO users_new VALUES ('carol', '77', 'Free'), ('Bob', '78', 'Pro');"


@pytest.mark.parametrize("after", ["", "DROP TABLE users_old;"], ids=["kept", "dropped"])
async def test_exchange_of_tables_by_renaming_is_followed(database: Database, after: str) -> None:
    """With the rows of the new table, in single lookups and in shared queries."""
    backend = backend_of(database, pool={"max": "1"})
    queries = [*map(ByNickname, ["alice", "Bob", "carol"]), ByCard("77"), ByCard(BOB.card_number)]
    async with opened_backend(backend):
        for _ in range(2):
            await asyncio.gather(*(outcome(backend, each) for each in queries))
        await asyncio.to_thread(database.run, SWAP.format(rows=NEW_ROWS, after=after))
        assert await outcome(backend) == "not found"
        ended = await asyncio.gather(*(outcome(backend, each) for each in queries))
        assert ended == ["not found", "found", "found", "found", "not found"]
        assert backend.problem is None


OTHER_TABLES = {
    "created with other users": f"DROP TABLE users; {USERS} {NEW_ROWS.replace('_new', '')}".replace(
        "Bob", "dave"
    ),
    "moved to another schema": (
        "CREATE SCHEMA other; CREATE TABLE other.users (LIKE users);"
        "ALTER TABLE users SET SCHEMA extensions; ALTER TABLE other.users SET SCHEMA public"
    ),
    "renamed for an empty one": SWAP.format(rows="", after=""),
}


@pytest.mark.parametrize("change", list(OTHER_TABLES.values()), ids=list(OTHER_TABLES))
async def test_not_found_in_another_table_is_an_error_and_not_believed(
    database: Database, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(database.run, "DROP TABLE IF EXISTS extensions.users")
    await asyncio.to_thread(database.run, "UPDATE users SET nickname = upper(nickname)")
    backend = backend_of(database, case="fold", pool={"max": "1"})
    queries = [ByNickname("alice"), ByCard("1")] * 4
    async with opened_backend(backend):
        assert await outcome(backend) == "found"
        await asyncio.to_thread(database.run, change)
        ended = await asyncio.gather(*(outcome(backend, each) for each in queries))
        assert "not found" not in ended
        replaced = "public.users was replaced by a table that lacks most of the old users"
        assert str(backend.problem).startswith(replaced)
        # With these users it is the same table as far as can be seen, such as a restored one.
        await asyncio.to_thread(database.run, f"TRUNCATE users; {rows()}")
        await until(lambda: backend.problem is None)
        assert await outcome(backend) == "found"
        assert await outcome(backend, ByCard("1")) == "not found"
    assert caplog.text.count(replaced) == 1
    await asyncio.to_thread(database.run, "DROP TABLE IF EXISTS extensions.users")


@pytest.mark.parametrize(
    ("rows", "old", "fetched"),
    [([], ["alice"], [1]), ([("carol",)], ["alice", "bob", "carol"], [False, 1])],
    ids=["filled after its rows were read", "a third of them, and not renamed"],
)
async def test_table_without_half_of_the_old_users_does_not_replace_theirs(
    database: Database, rows: list[tuple[str]], old: list[str], fetched: list[object]
) -> None:
    """A table without rows has no users that the next table can be compared with."""
    connection = mock.AsyncMock()
    connection.fetch.return_value = rows
    connection.fetchrow.return_value = (2, "public.users", [], "now")
    connection.fetchval.side_effect = fetched
    before = Relation(1, "public.users", old, "now")
    with pytest.raises(Broken, match="lacks most of the old users"):
        await resolve(connection, backend_of(database).options, before, lambda value: value)


async def test_database_that_is_exchanged_by_renaming_is_compared(database: Database) -> None:
    server, name, (end, *_) = database.server, database.name, DISCONNECT.split(" AND")
    database.close()
    server.run(f"CREATE DATABASE copied TEMPLATE {name}")
    server.run("DELETE FROM users", "copied")
    server.end_session("copied")
    async with opened_backend(backend_of(database)) as backend:
        assert await outcome(backend) == "found"
        server.run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false; {end}")
        server.run(f"ALTER DATABASE {name} RENAME TO old; ALTER DATABASE copied RENAME TO {name}")
        results = {await outcome(backend) for _ in range(9)}
        assert any("lacks most of the old users" in each for each in results)
        assert "not found" not in results

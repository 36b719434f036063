"""The PostgreSQL backend behind PgBouncer, and its prepared statements."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from unittest import mock

import asyncpg
import pytest
from asyncpg.exceptions import InFailedSQLTransactionError
from pydantic import SecretStr

from idv_postgres.backend import PostgresBackend
from idv_postgres.connection import Connector
from idv_postgres.key_database import KeyDatabase
from support.databases.pgbouncer import running_pooler
from support.databases.postgres_backends import backend_of, serving
from support.databases.postgres_server import ALICE, BOB, USERS, Database
from tornado_idv import Broken, ByCard, ByNickname, KeyStoreError, StartError, User
from tornado_idv.registry import opened_backend

pytestmark = pytest.mark.slow

IGNORING = (
    "ignore_startup_parameters = "
    "statement_timeout,row_security,search_path,idle_in_transaction_session_timeout"
)


@pytest.fixture
def pooled(database: Database, request: pytest.FixtureRequest) -> Iterator[str]:
    """The dsn of PgBouncer in transaction mode, with more servers than one client needs.

    A parameter is a line of its configuration.
    """
    with running_pooler(database.server, getattr(request, "param", "")) as port:
        yield database.dsn.replace(str(database.server.port), str(port))


async def test_lookups_in_transaction_mode_do_not_mix(database: Database, pooled: str) -> None:
    """Each transaction may run in another session, where an unnamed statement is another one."""
    database.write(ALICE, BOB)
    queries = [ByNickname("alice"), ByCard(BOB.card_number), ByNickname("carol")] * 20
    async with serving(database, dsn=pooled, prepared_statements="false") as backend:
        found = await asyncio.gather(*(backend.find(query) for query in queries))
        assert found == [ALICE, BOB, None] * 20
        database.run("ALTER TABLE users ENABLE ROW LEVEL SECURITY")
        found = await asyncio.gather(*map(backend.find, queries), return_exceptions=True)
        assert {type(each) for each in found} == {Broken}
    with pytest.raises(StartError, match="affected by row-level security policy"):
        await backend_of(database, dsn=pooled, prepared_statements="false").open()
    database.clear()


async def leave_state(dsn: str) -> None:
    """Be another client, which leaves a table and settings in each session of the server."""
    for _ in range(8):
        client = await asyncpg.connect(dsn, statement_cache_size=0)
        table = "users (nickname text, card_number text, plan text, profile_url text)"
        await client.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {table}")
        await client.execute("SET search_path = other, public")
        client.terminate()


@pytest.mark.parametrize("when", ["before the start", "later"])
async def test_what_another_client_leaves_in_a_session_changes_no_answer(
    database: Database, pooled: str, when: str
) -> None:
    database.write(ALICE, BOB, table=USERS.replace("nickname text", "nickname citext"))
    database.run("DROP SCHEMA IF EXISTS other CASCADE; CREATE SCHEMA other")
    database.run("CREATE TABLE other.users (LIKE users); GRANT USAGE ON SCHEMA other TO idv")
    if when == "before the start":
        await leave_state(pooled)
    own = {"by_nickname": "SELECT * FROM users WHERE nickname = $1"}
    dsn = {"dsn": pooled, "prepared_statements": "false"}
    for options in (dsn, dsn | own):
        async with serving(database, **options) as backend:
            if when == "later":
                await leave_state(pooled)
            found = [await backend.find(ByNickname("alice")) for _ in range(8)]
            assert found == [ALICE] * 8
            assert await backend.find(ByNickname("carol")) is None
    database.run("DROP SCHEMA other CASCADE")


@pytest.mark.parametrize("pooled", ["min_pool_size = 1\ndefault_pool_size = 1"], indirect=True)
def test_what_another_client_leaves_in_a_session_leads_users_to_no_other_table(
    database: Database, pooled: str
) -> None:
    database.clear(f"{USERS} GRANT ALL ON users TO idv; INSERT INTO users VALUES ('a', '1', 'b')")
    asyncio.run(leave_state(pooled))
    options = backend_of(database, dsn=pooled, prepared_statements="false").options
    store = PostgresBackend.user_store(options)
    assert (store.count(), list(store.records())) == (1, [User("b", "1", "a")])
    with store.transaction(in_place=True) as changes:
        assert [*changes.stored()] == [("a", "1", "b", None, "a")]
        assert changes.insert(["nickname", "card_number", "plan"], [("c", "2", "d")]) == 1
        changes.commit()
    assert database.run("SELECT count(*) FROM public.users") == "2"


async def test_no_statement_has_a_name_that_another_process_may_use(database: Database) -> None:
    database.write(ALICE, BOB)
    change = f'ALTER DATABASE "{database.name}"'
    database.run(f"{change} SET log_statement = 'all'")
    before = len(database.server.log)

    def use_keys() -> None:
        with closing(KeyDatabase(SecretStr(database.dsn), "keys")) as keys:
            list(keys.execute("SELECT ?::text", ["x"]))
            keys.executemany("SELECT ?::text", [["x"], ["y"]])

    await asyncio.to_thread(use_keys)
    purged = asyncio.Event()
    backend = backend_of(database, notify={})
    backend.on_change(lambda *_: purged.set())
    store = PostgresBackend.user_store(backend.options)
    assert await asyncio.to_thread(lambda: list(store.records())) == [ALICE, BOB]
    async with opened_backend(backend):
        assert await backend.find(ByNickname("alice")) == ALICE
        await purged.wait()
    database.run(f"{change} RESET log_statement")
    names = re.findall(r"execute (\S+?)[/:]", database.server.log[before:])
    kinds = {re.sub("^idv_[0-9a-f]{32}$", "random", each) for each in names}
    assert kinds == {"<unnamed>", "random"}


async def test_statement_is_prepared_again_after_a_change_of_its_table_and_few_are_kept(
    database: Database,
) -> None:
    database.write(ALICE)
    with await Connector(SecretStr(database.dsn), timeout=5).connect() as connection:
        (before,) = await connection.fetch_prepared("SELECT * FROM users")
        database.run("ALTER TABLE users ADD COLUMN more text DEFAULT 'x'")
        (after,) = await connection.fetch_prepared("SELECT * FROM users")
        assert after == (*before, "x")
        async with connection.transaction():
            await connection.fetch_prepared("SELECT")
            database.run("ALTER TABLE users ADD COLUMN again text")
            with pytest.raises(InFailedSQLTransactionError):
                await connection.fetch_prepared("SELECT * FROM users")
        assert await connection.fetch_prepared("SELECT * FROM users") == [(*after, None)]
        fetch = mock.AsyncMock(side_effect=[asyncpg.OutdatedSchemaCacheError("x"), ["row"]])
        with mock.patch.object(asyncpg.prepared_stmt.PreparedStatement, "fetch", fetch):
            assert await connection.fetch_prepared("SELECT * FROM users", timeout=9) == ["row"]
        assert fetch.await_args_list[0] == mock.call(timeout=9)
        for number in range(100):
            assert await connection.fetch_prepared(f"SELECT {number}") == [(number,)]
        (count,) = await connection.fetchrow("SELECT count(*) FROM pg_prepared_statements")
        assert 0 < count <= 20
    database.clear()


STATEMENT_MODE = f"{IGNORING},default_transaction_isolation\npool_mode = statement"
NO_TRANSACTIONS = "a pooler in statement mode allows no transactions; connect to the server itself"
REJECTED = "a pooler rejects the startup parameter {}; connect to the server itself"


@pytest.mark.parametrize(
    ("pooled", "prepared", "message"),
    [
        (STATEMENT_MODE, "true", NO_TRANSACTIONS),
        (STATEMENT_MODE, "false", NO_TRANSACTIONS),
        ("", "true", REJECTED.format("statement_timeout")),
        (
            "pool_mode = session\nignore_startup_parameters = statement_timeout",
            "true",
            REJECTED.format("row_security"),
        ),
        (IGNORING, "true", "write prepared_statements: false"),
    ],
    ids=["statement mode", "statement mode, unprepared", "transactions", "session", "ignoring"],
    indirect=["pooled"],
)
async def test_a_pooler_that_cannot_be_used_is_refused_at_the_start(
    database: Database, pooled: str, prepared: str, message: str
) -> None:
    database.write(ALICE)
    with pytest.raises(StartError, match=message):
        await backend_of(database, dsn=pooled, prepared_statements=prepared).open()


async def test_the_key_store_always_needs_startup_parameters(pooled: str) -> None:
    with pytest.raises(KeyStoreError, match=r"startup parameter .*; connect to the server itself"):
        await asyncio.to_thread(KeyDatabase, SecretStr(pooled), "keys")


@pytest.mark.parametrize("pooled", [IGNORING], ids=["ignored parameters"], indirect=True)
async def test_pooler_that_ignores_parameters_hides_no_row(database: Database, pooled: str) -> None:
    """The key store reports each row that it may not read."""
    database.clear(
        "CREATE SCHEMA idv_keys CREATE TABLE keys () CREATE TABLE tokens () "
        "CREATE TABLE store (version int); ALTER TABLE idv_keys.store ENABLE ROW LEVEL SECURITY;"
        "GRANT USAGE ON SCHEMA idv_keys TO idv;"
        "GRANT SELECT ON ALL TABLES IN SCHEMA idv_keys TO idv;"
    )

    def read(*, writing: bool) -> None:
        with (
            closing(KeyDatabase(SecretStr(pooled), "keys")) as keys,
            keys.writing("SELECT 1") if writing else keys.reading(),
        ):
            keys.execute("SELECT FROM idv_keys.store")

    for writing in (False, True):
        with pytest.raises(KeyStoreError, match="row-level security hides rows"):
            await asyncio.to_thread(read, writing=writing)

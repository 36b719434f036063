"""The user store of the plugin postgres, and its sessions with the server."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import asyncpg
import pytest
from asyncpg import Connection
from asyncpg.transaction import Transaction

from idv_postgres.backend import PostgresBackend
from support.databases.postgres_server import Database
from support.databases.user_store_conformance import (
    ALICE,
    BOB,
    SAME_CARD,
    SAME_NICKNAME,
    UserStoreConformance,
    assert_all_fail,
    then,
)
from support.databases.user_tables import UNIQUE, Row, UserTable
from support.processes.process import Invoke
from tornado_idv import Broken, LookupFailed, StartError, Unavailable, User, UserStore

pytestmark = pytest.mark.slow
CREATE = f"""
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO idv;
CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE users ({UNIQUE});
"""
AT_COMMIT = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON users DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION fail();
"""
ON_INSERT = """
CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} RETURN NULL; END $$;
CREATE TRIGGER on_insert BEFORE INSERT ON users EXECUTE FUNCTION act();
"""


class PostgresTable(UserTable):
    kind = PostgresBackend
    caseless = "COLLATE caseless"
    unreachable: ClassVar = {"dsn": "postgresql://idv@127.0.0.1:1/x"}

    def __init__(self, folder: Path, database: Database) -> None:
        # An import must see what was committed while it waited for its lock, nevertheless.
        isolation = "&default_transaction_isolation=repeatable%20read"
        super().__init__(folder, kind="postgres", dsn=database.dsn + isolation)
        self.database = database
        database.clear(CREATE)

    def run(self, script: str) -> list[Row]:
        lines = self.database.run(script).splitlines()
        return [tuple(cell or None for cell in line.split("|")) for line in lines]

    def lock(self) -> None:
        self.run("BEGIN; LOCK TABLE users IN ROW EXCLUSIVE MODE NOWAIT; COMMIT")

    @contextmanager
    def writing(self, script: str) -> Iterator[None]:
        self.run(f"BEGIN; {script}")
        yield
        self.run("COMMIT")

    def wait_briefly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        execute = Connection.execute

        async def execute_briefly(connection: Connection, query: str, *values: object) -> str:
            query = re.sub(r"(?<=lock_timeout = ')\w+", "20ms", query)
            return str(await execute(connection, query, *values))

        monkeypatch.setattr(Connection, "execute", execute_briefly)

    def fail_commit(self, monkeypatch: pytest.MonkeyPatch, *, uncertain: bool) -> None:
        refuse = "RAISE check_violation USING CONSTRAINT = 'paid';"
        end = "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(9); RETURN NULL;"
        self.run(AT_COMMIT.format(end if uncertain else refuse))


@pytest.fixture
def table(tmp_path: Path, database: Database) -> PostgresTable:
    return PostgresTable(tmp_path, database)


class TestConformance(UserStoreConformance):
    """All of it."""


def shorten(monkeypatch: pytest.MonkeyPatch, *names: str, to: float) -> None:
    """Set the plugin's constants whose names end so to these seconds."""
    modules = [each for name, each in sys.modules.items() if name.startswith("idv_postgres.")]
    found = [(each, name) for each in modules for name in vars(each) if name.endswith(names)]
    assert found
    for module, name in found:
        monkeypatch.setattr(module, name, to)


def test_columns_may_have_other_types(table: PostgresTable) -> None:
    """Padded card numbers are the same ones."""
    table.run("CREATE TYPE plans AS ENUM ('Free', 'Pro')")
    columns = "nickname varchar UNIQUE, card_number char(20) UNIQUE, plan plans, since text"
    table.create(columns, ("alice", "1", "Pro", "then"), ("bob", "2", "Free", "then"))
    assert table.load([ALICE, User("Pro", "3", "carl")], "merge") == ((2, 1, 1, 0), [], 2)
    rows = table.run("SELECT nickname, trim(card_number), plan, since FROM users ORDER BY 1")
    users = ("alice", "1", "Free", "then"), ("bob", "2", "Free", "then"), ("carl", "3", "Pro", None)
    assert rows == [*users]


def test_duplicates_are_rejected_also_where_the_table_would_at_its_commit(
    table: PostgresTable,
) -> None:
    deferred = "text UNIQUE DEFERRABLE INITIALLY DEFERRED"
    table.create(f"nickname {deferred}, card_number {deferred}, plan text")
    users = [User("Free", card, name) for name, card in ("a1", "b2", "a3", "c2", "d3")]
    rejected = [(4, SAME_NICKNAME), (5, SAME_CARD)]
    assert table.load(users) == ((3, 3, 0, 0), rejected, 0)
    assert len(table.run("SELECT * FROM users")) == 3


def test_duplicates_far_apart_are_rejected(table: PostgresTable) -> None:
    """Rows that take several messages of the COPY."""
    users = [User("x" * 21_500, str(number), f"user{number}") for number in range(600)]
    users[250] = User("Free", "0", "same card")
    users[450] = User("Free", "1000", "user300")
    rejected = [(252, SAME_CARD), (452, SAME_NICKNAME)]
    assert table.load(users) == ((598, 598, 0, 0), rejected, 0)
    assert table.run("SELECT count(DISTINCT (nickname, card_number)) FROM users") == [("598",)]


def test_import_refused_while_a_batch_is_inserted_logs_nothing(
    table: PostgresTable, caplog: pytest.LogCaptureFixture
) -> None:
    table.run(ON_INSERT.format("PERFORM pg_sleep(0.3);"))

    def refuse() -> None:
        raise StartError("refused")

    users = (User("x" * 21_000, str(number), f"user{number}") for number in range(250))
    with pytest.raises(StartError, match="refused"):
        table.load(then(refuse, *users))
    gc.collect()  # asyncio logs an exception that was not retrieved as its task is deleted
    assert not caplog.records
    assert table.users() == set()


def test_missing_permission_is_named(table: PostgresTable) -> None:
    """Of the role, of the session and of row-level security, which would hide users."""
    table.write(BOB)
    read_only = f"{table.database.dsn}&default_transaction_read_only=on"
    with pytest.raises(LookupFailed, match="default_transaction_read_only is on"):
        table.load([ALICE], dsn=read_only)
    table.run("REVOKE INSERT ON users FROM idv")
    with pytest.raises(LookupFailed, match="GRANT SELECT, INSERT"):
        table.load([ALICE])
    table.run("GRANT ALL ON users TO idv; ALTER TABLE users ENABLE ROW LEVEL SECURITY")
    assert_all_fail(table.store(), "for row-level security, ALTER ROLE")
    assert table.users() == {BOB}


def test_import_notifies_services_by_the_connection_for_notifications(table: PostgresTable) -> None:
    """The other one may lead to a pooler; here it wants TLS, which the server does not have."""
    notify = {"dsn": table.database.dsn, "channel": "idv_users"}
    table.run("LISTEN idv_users")
    table.load([ALICE], dsn=f"{table.database.dsn}&sslmode=require", notify=notify)
    said = table.database.run("UNLISTEN idv_users")
    assert said.count('notification "idv_users" with payload "*"') == 1


def test_pause_between_rows_is_no_reason_to_end_the_session(table: PostgresTable) -> None:
    names = "('idle_in_transaction_session_timeout', 'transaction_timeout')"
    known = table.run(f"SELECT name FROM pg_settings WHERE name IN {names}")
    dsn = table.database.dsn + "".join(f"&{name}=500ms" for (name,) in known)
    users = then(lambda: table.run("SELECT pg_sleep(0.7)"), ALICE)
    assert table.load(users, dsn=dsn)[0].added == 1


@pytest.mark.parametrize("stored", [[BOB], []], ids=["replaced", "empty"])
def test_session_that_is_closed_while_rows_are_read_is_reported(
    table: PostgresTable, stored: list[User]
) -> None:
    table.write(*stored)
    with pytest.raises(Unavailable, match=r"^the connection was lost( \(SQLSTATE 08003\))?$"):
        table.load(then(table.database.disconnect, ALICE))
    assert table.users() == set(stored)


@pytest.mark.parametrize(
    ("moment", "message"),
    [
        ("users", "the server does not respond"),
        ("commit", "whether the users were changed could not be determined"),
    ],
)
def test_frozen_server_ends_the_import(
    table: PostgresTable, monkeypatch: pytest.MonkeyPatch, moment: str, message: str
) -> None:
    shorten(monkeypatch, "_CHECK_INTERVAL", to=0.05)
    shorten(monkeypatch, "_CONNECT_TIMEOUT", to=1.0)
    freeze, commit = table.database.server.pause, Transaction.commit

    async def freeze_and_commit(transaction: Transaction) -> None:
        freeze()
        await commit(transaction)

    if moment == "commit":
        monkeypatch.setattr(Transaction, "commit", freeze_and_commit)
    users = then(freeze, ALICE) if moment == "users" else [ALICE]
    try:
        with pytest.raises(Unavailable, match=message):
            table.load(users)
    finally:
        table.database.server.resume()


@pytest.mark.parametrize("fault", ["no thread", "no event loop", "no socket"])
def test_a_check_that_cannot_be_made_says_nothing_of_the_server(
    table: PostgresTable, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A frozen server is noticed by a later check, and other errors are reported as they are."""
    monkeypatch.setattr("idv_postgres.store._CHECK_INTERVAL", 0.05)
    monkeypatch.setattr("idv_postgres.store._CONNECT_TIMEOUT", 1.0)
    failed: list[str] = []
    server, main = table.database.server, threading.main_thread()

    def failing(original: Any, error: Exception, *, fails: Callable[[], bool]) -> Any:
        def call(*values: Any, **arguments: Any) -> Any:
            if len(failed) < 3 and fails():
                failed.append(fault)
                raise error
            return original(*values, **arguments)

        return call

    def is_check() -> bool:
        return threading.current_thread() is not main

    full = OSError(errno.EMFILE, "Too many open files")
    if fault == "no thread":
        start = failing(
            threading.Thread.start, RuntimeError("can't start new thread"), fails=lambda: True
        )
        monkeypatch.setattr(threading.Thread, "start", start)
    elif fault == "no event loop":
        new_loop = failing(asyncio.events.new_event_loop, full, fails=is_check)
        monkeypatch.setattr(asyncio.events, "new_event_loop", new_loop)
    else:
        monkeypatch.setattr(asyncpg, "connect", failing(asyncpg.connect, full, fails=is_check))
    table.run(ON_INSERT.format("PERFORM pg_sleep(0.5); RAISE check_violation USING TABLE = 'x';"))
    with pytest.raises(Broken, match="CheckViolationError"):
        table.load([ALICE])
    assert failed
    failed.clear()
    try:
        with pytest.raises(Unavailable, match="the server does not respond any more"):
            table.load(then(server.pause, ALICE))
    finally:
        server.resume()
    assert len(failed) == 3
    gc.collect()  # no coroutine was left unawaited


def test_server_that_freezes_after_the_commit_does_not_hide_that_the_users_are_changed(
    table: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = table.database.server
    monkeypatch.setattr(UserStore, "ignore_signals", staticmethod(server.pause))
    try:
        assert table.load([ALICE])[0].added == 1
    finally:
        server.resume()
    assert table.users() == {ALICE}


@pytest.mark.parametrize("limit", [-1, 1], ids=["connections left", "no connection left"])
def test_slow_statement_does_not_end_the_import(
    table: PostgresTable, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    shorten(monkeypatch, "_CHECK_INTERVAL", to=0.05)
    sleep = ON_INSERT.format("PERFORM pg_sleep(0.2);")
    table.run(f"ALTER ROLE idv CONNECTION LIMIT {limit}; {sleep}")
    try:
        assert table.load([ALICE])[0].added == 1
    finally:
        table.run("ALTER ROLE idv CONNECTION LIMIT -1")


def test_cancelled_statement_ends_the_import(table: PostgresTable) -> None:
    """Also where the same statement would not be cancelled again."""
    cancel_once = ON_INSERT.format("IF nextval('calls') = 1 THEN RAISE query_canceled; END IF;")
    table.run(f"CREATE SEQUENCE calls; GRANT ALL ON SEQUENCE calls TO idv; {cancel_once}")
    with pytest.raises(Unavailable, match="stopped by the server"):
        table.load([ALICE])
    assert table.users() == set()


def test_queries_find_single_users_only(table: PostgresTable, invoke: Invoke) -> None:
    """Which is enough for a comparison with a sample of another backend."""
    table.write(BOB)
    query = "SELECT plan, card_number, nickname, profile_url FROM users WHERE nickname = $1"
    queries = json.dumps({**table.options, "name": "queries", "by_nickname": query})
    config = table.configure(queries)
    done = invoke("users", "compare", "people", "queries", "--sample", 2, "-c", config)
    assert done.exit_code == 0
    done = invoke("users", "count", "--from", "queries", "-c", config)
    assert (done.exit_code, "find single users" in done.stderr) == (3, True)

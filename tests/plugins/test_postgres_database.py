"""Connections of the PostgreSQL backend: hosts, roles, lookups, the pool; with a faked driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from asyncpg import InvalidPasswordError, TargetServerAttributeNotMatched, TooManyConnectionsError
from pydantic import SecretStr

from idv_postgres import database as database_module
from idv_postgres import schema
from idv_postgres.backend import PostgresBackend
from idv_postgres.connection import Connector, Pool
from idv_postgres.database import Database
from idv_postgres.key_store import PostgresKeyStore
from idv_postgres.listener import Listener
from idv_postgres.lookups import Lookups
from tornado_idv import Broken, KeyStoreError, StartError, Unavailable
from tornado_idv.kit.testing import make_backend

DSN = "postgresql://idv:canary@a,b,c/idv"


class Connection:
    """Records what it runs; a statement waits, or raises, as the driver says."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.done: list[str] = []
        self.ended = False
        self.standby: object = "unknown"
        self.host = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def is_closed(self) -> bool:
        return self.ended

    def terminate(self) -> None:
        self.ended = True
        self.done.append("terminate")

    async def close(self, *, timeout: float) -> None:  # noqa: ASYNC109 - asyncpg's
        self.ended = True
        self.done.append("close")

    @asynccontextmanager
    async def transaction(self, *, readonly: bool = False) -> AsyncIterator[None]:
        self.done.append("read only" if readonly else "read and write")
        yield

    async def execute(self, sql: str) -> None:
        self.done.append(sql)
        if sql == "ROLLBACK":
            await self.driver.roll_back()

    async def fetch_prepared(self, sql: str, *values: object, **options: Any) -> Any:
        return await self.fetch(sql, *values, **options)

    async def fetchval(self, sql: str) -> str:
        self.done.append(sql)
        if sql == database_module._TIMELINE:  # noqa: SLF001 - a server that is scripted
            return self.driver.timelines.get(self.host, "1")
        return self.driver.row_security

    async def fetch(self, sql: str, _: object, timeout: float | None) -> list[Any]:  # noqa: ASYNC109 - asyncpg's
        """Return the statement, with a column more if the state of a standby would be returned."""
        sql, is_plain = sql.partition("FROM (\n")[2].partition("\n)")[0] or sql, "FROM (" not in sql
        self.done.append(f"{sql} in {timeout}")
        self.driver.fetching.set()
        await self.driver.going_on.wait()
        if self.driver.error is not None:
            raise self.driver.error
        return [(sql,)] if is_plain else [(sql, None)]


class Driver:
    """Stands for ``asyncpg.connect``; ``errors`` are raised for a host, or for host and role."""

    def __init__(self) -> None:
        self.tried: list[tuple[str, str]] = []
        self.arguments: dict[str, Any] = {}
        self.connections: list[Connection] = []
        """Of the pool."""
        self.inspecting: Connection
        self.errors: dict[object, BaseException] = {}
        self.row_security = "off"
        self.timelines: dict[str, str] = {}
        self.error: Exception | None = None
        self.rollback_error: Exception | None = None
        self.fetching, self.going_on = asyncio.Event(), asyncio.Event()
        self.going_on.set()

    async def connect(
        self, dsn: str, *, target_session_attrs: str, connection_class: object, **arguments: Any
    ) -> Connection:
        host = dsn.partition("@")[2].partition("/")[0]
        self.tried.append((host, target_session_attrs))
        self.arguments = arguments
        for each in (host, self.tried[-1]):
            if each in self.errors:
                raise self.errors[each]
        self.connections.append(Connection(self))
        self.connections[-1].host = host
        return self.connections[-1]

    async def roll_back(self) -> None:
        await self.going_on.wait()
        if self.rollback_error is not None:
            raise self.rollback_error

    def take(self) -> list[tuple[str, str]]:
        """Return the attempts since the last call."""
        tried, self.tried = self.tried, []
        return tried


@pytest.fixture
def driver(io_loop: object, monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr("asyncpg.connect", driver.connect)

    async def inspect(connection: Connection, *_: object) -> Lookups:
        driver.connections.remove(connection)
        driver.inspecting = connection
        return Lookups({}, search_path="public, pg_temp")

    monkeypatch.setattr(database_module, "inspect", inspect)
    return driver


def make(**options: Any) -> Database:
    return Database(make_backend(PostgresBackend, Path(), **{"dsn": DSN, **options}).options)


def connector(**options: Any) -> Connector:
    return Connector(
        SecretStr(options.pop("dsn", DSN)), timeout=options.pop("timeout", 2), **options
    )


async def test_host_that_responded_last_is_tried_first(driver: Driver) -> None:
    connecting = connector()
    driver.errors = {"a": TimeoutError(), "b": ConnectionRefusedError()}
    await connecting.connect()
    assert driver.take() == [("a", "primary"), ("b", "primary"), ("c", "primary")]
    await connecting.connect()
    assert driver.take() == [("c", "any")]
    driver.errors = {"c": TimeoutError()}
    await connecting.connect()
    assert driver.take() == [("c", "any"), ("a", "primary")]


async def test_each_role_is_tried_with_all_hosts_before_the_next_one(driver: Driver) -> None:
    """A host that hangs is tried once, and not for each role."""
    driver.errors = {(each, "standby"): TargetServerAttributeNotMatched() for each in "bc"}
    driver.errors["a"] = TimeoutError()
    await connector(dsn=f"{DSN}?target_session_attrs=prefer-standby").connect()
    assert driver.take() == [("a", "standby"), ("b", "standby"), ("c", "standby"), ("b", "any")]


async def test_roles_of_the_caller_are_used_instead_of_those_of_the_uri(driver: Driver) -> None:
    uri = "postgresql://idv@a,b,c,d,e,f,g,h/idv?target_session_attrs=standby"
    options = {"roles": ("primary",), "avoid": [f"{x}:5432" for x in "abcdefg"]}
    await connector(dsn=uri, timeout=0.2, last="gone:5432", **options).connect()
    assert driver.take() == [("h", "primary")]
    assert driver.arguments["timeout"] == 1.0  # a host has a second at least


async def test_error_that_no_other_host_can_repair_ends_the_attempt(driver: Driver) -> None:
    driver.errors = {"a": InvalidPasswordError("wrong"), "b": TimeoutError()}
    with pytest.raises(InvalidPasswordError):
        await connector().connect()
    assert driver.take() == [("a", "primary")]


async def test_full_server_is_reported_first_and_one_of_another_role_last(driver: Driver) -> None:
    standby = TargetServerAttributeNotMatched()
    driver.errors = {"a": standby, "b": ConnectionRefusedError(), "c": TimeoutError()}
    with pytest.raises(ConnectionRefusedError):
        await connector().connect()
    driver.errors["b"] = TooManyConnectionsError("x")
    driver.take()
    with pytest.raises(TooManyConnectionsError):
        await connector().connect()
    assert [host for host, _ in driver.take()] == ["a", "b", "c", "a"]
    driver.errors = dict.fromkeys("abc", standby)
    with pytest.raises(TargetServerAttributeNotMatched):
        await connector().connect()


async def test_commands_and_notifications_use_a_primary_alone(driver: Driver) -> None:
    uri = "postgresql://idv@p,q/x"
    options: Any = make_backend(PostgresBackend, Path(), dsn=DSN, notify={"dsn": uri}).options
    keys, listener = PostgresKeyStore(SecretStr(uri)), Listener(options, make(), print)
    for use in (
        PostgresBackend.user_store(options).count,
        keys.create,
        lambda: asyncio.run(schema._apply(options)),  # noqa: SLF001 - the command prints its own
        lambda: asyncio.run(asyncio.wait_for(listener.run(), 0.01)),
    ):
        driver.errors = dict.fromkeys("pq", TargetServerAttributeNotMatched())
        with pytest.raises((Unavailable, KeyStoreError, StartError, TimeoutError)):
            await asyncio.to_thread(use)
        assert driver.take() == [("p", "primary"), ("q", "primary")]
    driver.errors = {"p": InvalidPasswordError("canary")}
    with pytest.raises(
        KeyStoreError, match=r"the password in the dsn is wrong \(SQLSTATE 28P01\)$"
    ):
        await asyncio.to_thread(keys.create)


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [(DSN, "ValueError"), ("mysql://canary@h", "not a connection URI")],
    ids=["refused by the driver", "changed to no URI"],
)
async def test_error_is_raised_without_parts_of_the_uri(
    driver: Driver, dsn: str, reason: str
) -> None:
    driver.errors = {"a": ValueError("canary")}
    with pytest.raises(Broken, match=f"the dsn cannot be used: {reason}") as caught:
        await connector(dsn=dsn).connect()
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


async def test_connections_that_are_configured_are_opened_and_the_table_read_only(
    driver: Driver,
) -> None:
    database = make(timeout="2s", pool={"min": "2", "max": "3"})
    assert not database.pool.connections
    await database.open()
    assert database.pool.connections
    began = [database_module.SERVER]
    done = ["read only", "SHOW row_security", "close", "terminate"]
    assert driver.inspecting.done == [database_module._TIMELINE, *began, *done]  # noqa: SLF001 - a server that is scripted
    assert [each.done for each in driver.connections] == [began, began]
    assert driver.arguments == {
        "timeout": 2.0,
        "statement_cache_size": 0,
        "server_settings": {
            "application_name": "tornado-idv",
            "statement_timeout": "1800",
            "row_security": "off",
            "default_transaction_isolation": "read committed",
            "search_path": "public, pg_temp",
        },
    }


async def test_pooler_gets_no_setting_of_a_session(driver: Driver) -> None:
    """Each transaction begins with the same ones. A shared query has a third of the time."""
    database = make(timeout="3s", prepared_statements="false", pool={"max": "1"})
    await database.open()
    assert driver.arguments["server_settings"] == {}
    (connection,) = driver.connections
    assert driver.inspecting.done[:2] == ["read only", "SET LOCAL row_security = off"]
    assert (await database.fetch("SELECT", "x")).rows == [("SELECT",)]
    assert connection.done == [
        (
            "BEGIN ISOLATION LEVEL READ COMMITTED; "
            "SET LOCAL statement_timeout = 2700; SET LOCAL row_security = off; "
            "SET LOCAL search_path TO public, pg_temp"
        ),
        "SELECT in None",
        "COMMIT",
    ]
    await database.fetch("SELECT", ["x", "y"])
    assert connection.done[-2:] == ["SELECT in 1.0", "COMMIT"]


async def test_server_that_may_hide_rows_is_broken(driver: Driver) -> None:
    driver.row_security = "on"
    with pytest.raises(Broken, match="a pooler ignores the startup parameter row_security"):
        await make().open()
    assert all(each.ended for each in driver.connections)


async def test_opening_again_closes_the_pool_before(driver: Driver) -> None:
    database = make(pool={"max": "1"})
    await database.open()
    driver.going_on.clear()
    running = asyncio.create_task(database.fetch("SELECT", "x"))
    await driver.fetching.wait()
    await database.open()
    before, after = driver.connections
    assert (before.ended, after.ended) == (True, False)
    running.cancel()
    await asyncio.wait([running])
    # Its slot is not given to the new pool, which has one.
    lookups = [asyncio.create_task(database.fetch("SELECT", "x")) for _ in range(2)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert [each.done.count("SELECT in None") for each in driver.connections] == [1, 1]
    driver.going_on.set()
    await asyncio.gather(*lookups)
    assert len(driver.connections) == 2
    await database.pool.close()
    assert not database.pool.connections


@pytest.mark.parametrize(
    ("roles", "used", "problem", "wanted"),
    [
        ("prefer-standby", "primary", None, "standby"),
        ("prefer-standby", "standby", None, None),
        ("prefer-standby", "standby", "is behind", "primary"),
        ("standby", "standby", None, None),
        ("standby", "standby", "is behind", "standby"),
    ],
)
async def test_lookups_stay_unless_another_role_is_better(
    driver: Driver, roles: str, used: str, problem: str | None, wanted: str | None
) -> None:
    database = make(dsn=f"{DSN}?target_session_attrs={roles}")
    await database.open()
    database.executor.servers[driver.connections[0].address] = used, problem
    assert database.wanted_role == wanted


async def test_lookups_use_the_newest_timeline_of_the_hosts_that_respond(driver: Driver) -> None:
    """The first host is the primary from before a failover to the second."""
    database, is_down = make(dsn="postgresql://idv@a,b/idv"), ConnectionRefusedError()

    async def used(down: str = "", *, in_order: bool = True) -> str:
        driver.errors = dict.fromkeys(down, is_down)
        await database.inspect(in_order=in_order)
        return driver.inspecting.host

    assert [await used(), await used("a")] == ["a", "b"]
    assert [await used(), await used("a")] == ["a", "b"]  # of the same timeline
    driver.timelines["b"] = "2"
    assert [await used("a"), await used()] == ["b", "b"]
    assert [await used("b"), await used("b", in_order=False)] == ["a", "a"]
    assert [await used(in_order=False), await used(), await used()] == ["a", "b", "b"]
    for driver.timelines["a"] in ("3", ""):  # a standby has none
        assert await used() == "a"
    driver.timelines = {}
    assert await used("a") == "b"
    database.executor.servers["b:5432"] = "standby", "is behind"
    assert await used() == "b"  # or lookups could return to a standby that they left


async def test_lookups_use_one_host_at_a_time(driver: Driver) -> None:
    """Two hosts may have different users."""
    database = make(dsn="postgresql://idv@a,b/idv", pool={"min": "2", "max": "3"})
    await database.open()
    pool, is_down = database.pool, ConnectionRefusedError()
    first, second = await pool.acquire(), await pool.acquire()
    driver.errors = {"a": is_down}
    third = await pool.acquire()
    for each in (first, third):
        pool.release(each)
    assert (first.is_closed(), third.is_closed()) == (True, False)
    driver.errors = {"b": is_down}
    await database.inspect()
    assert (second.is_closed(), third.is_closed()) == (False, True)


@pytest.mark.parametrize("prepared", ["true", "false"])
async def test_lookup_that_is_cancelled_closes_its_connection_and_leaves_the_slot(
    driver: Driver, prepared: str
) -> None:
    """The next probe replaces the idle ones, once: a firewall has often forgotten all."""
    database = make(prepared_statements=prepared, pool={"min": "2", "max": "2"})
    await database.open()
    await database.probe()
    assert [each.ended for each in driver.connections] == [False, False, True]
    driver.connections.pop()
    driver.going_on.clear()
    lookup = asyncio.create_task(database.fetch("SELECT", "x"))
    await driver.fetching.wait()
    lookup.cancel()
    await asyncio.wait([lookup])
    assert lookup.cancelled()
    assert sorted(each.ended for each in driver.connections) == [False, True]
    await database.probe()
    assert all(each.ended for each in driver.connections)
    lookups = [asyncio.create_task(database.fetch("SELECT", "x")) for _ in range(2)]
    for _ in range(5):
        await asyncio.sleep(0)
    driver.going_on.set()
    assert [each.rows for each in await asyncio.gather(*lookups)] == [[("SELECT",)]] * 2
    await database.probe()
    assert [each.ended for each in driver.connections] == [True, True, True, False, False, True]


@pytest.mark.parametrize("error", [TimeoutError(), ZeroDivisionError()], ids=["timeout", "other"])
@pytest.mark.parametrize("prepared", ["true", "false"])
async def test_lookup_that_fails_leaves_its_connection_to_the_next(
    driver: Driver, prepared: str, error: Exception
) -> None:
    database = make(prepared_statements=prepared, pool={"max": "1"})
    await database.open()
    driver.error = error
    with pytest.raises(type(error)):
        await database.fetch("SELECT", "x")
    driver.error = None
    last = "SELECT in None" if prepared == "true" else "ROLLBACK"
    assert driver.connections[0].done[-1] == last
    assert (await database.fetch("SELECT", "x")).rows == [("SELECT",)]
    assert len(driver.connections) == 1


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "fails"])
async def test_connection_that_cannot_roll_back_is_closed(driver: Driver, *, hangs: bool) -> None:
    """Otherwise the next lookup would be part of the transaction that failed."""
    database = make(prepared_statements="false", timeout="60ms", pool={"max": "1"})
    await database.open()
    driver.error, driver.rollback_error = ZeroDivisionError(), ConnectionResetError()
    if hangs:
        driver.roll_back = asyncio.Event().wait
    with pytest.raises(ZeroDivisionError):
        await database.fetch("SELECT", "x")
    driver.error = None
    assert driver.connections[0].done[-2:] == ["ROLLBACK", "terminate"]
    assert (await database.fetch("SELECT", "x")).rows == [("SELECT",)]
    assert len(driver.connections) == 2


async def test_pool_that_cannot_be_filled_leaves_no_connection_open(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: str) -> str:
        raise asyncio.CancelledError

    async def connect(*arguments: Any, **options: Any) -> Connection:
        connection = await driver.connect(*arguments, **options)
        if len(driver.tried) == 2:  # of which the first inspects the table
            monkeypatch.setattr(connection, "fetchval", fail)
        return connection

    monkeypatch.setattr("asyncpg.connect", connect)
    with pytest.raises(asyncio.CancelledError):
        await make(pool={"min": "2", "max": "2"}).open()
    assert [each.is_closed() for each in driver.connections] == [True, True]


async def test_connection_that_was_returned_last_is_used_next(driver: Driver) -> None:
    """So that others stay unused. Each is opened only when all are in use, up to the size."""
    pool = Pool(connector().connect, 2)
    first, second = await pool.acquire(), await pool.acquire()
    assert first is not second
    pool.release(first)
    pool.release(second)
    assert [await pool.acquire(), await pool.acquire()] == [second, first]
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    pool.release(first)
    assert await waiting is first
    assert len(driver.connections) == 2


@pytest.mark.parametrize("error", [asyncio.CancelledError(), InvalidPasswordError()])
async def test_connect_that_does_not_end_well_uses_up_no_slot(
    driver: Driver, error: BaseException
) -> None:
    pool = Pool(connector().connect, 1)
    driver.errors = {"a": error}
    with pytest.raises(type(error)):
        await pool.acquire()
    driver.errors = {}
    async with asyncio.timeout(5):
        await pool.acquire()


async def test_connection_that_was_closed_meanwhile_is_not_used_again(driver: Driver) -> None:
    """Neither one that was closed while it was in use, nor one that was closed since."""
    pool = Pool(connector().connect, 2)
    first, second = await pool.acquire(), await pool.acquire()
    first.terminate()
    pool.release(first)
    pool.release(second)
    second.terminate()
    assert not pool.connections
    assert [await pool.acquire(), await pool.acquire()] == driver.connections[2:]
    assert len(pool._open) == 2  # noqa: SLF001 - a service that runs for long loses many


async def test_connections_in_use_stay_when_idle_ones_are_dropped(driver: Driver) -> None:
    """Where all are replaced, until they are returned."""
    pool = Pool(connector().connect, 2)
    used, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    pool.drop_idle()
    assert [each.ended for each in driver.connections] == [False, True]
    pool.release(used)
    assert await pool.acquire() is used
    pool.replace()
    assert not used.is_closed()
    pool.release(used)
    assert used.is_closed()
    pool.release(idle := await pool.acquire())
    pool.replace()
    assert idle.is_closed()


async def test_close_ends_idle_connections_and_then_terminates_all(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean end is in the server's log as such. One that fails leaves no other one open."""
    pool = Pool(connector().connect, 3)
    _, broken, idle = [await pool.acquire() for _ in range(3)]
    pool.release(broken)
    pool.release(idle)

    async def fail(**_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(broken, "close", fail)
    await pool.close()
    assert ["close" in each.done for each in driver.connections] == [False, False, True]
    assert not pool.connections
    with pytest.raises(ConnectionAbortedError):
        await pool.acquire()
    assert all(each.ended for each in driver.connections)

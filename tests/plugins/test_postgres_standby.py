"""Lookups on a PostgreSQL standby: which server is used, and what its "not found" is worth."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest

from idv_postgres.backend import PostgresBackend
from idv_postgres.standby import Standbys
from support.databases.postgres_backends import backend_of, eventually
from support.databases.postgres_cluster import Cluster, running_cluster, running_standby
from support.databases.postgres_server import ALICE, USERS, Database, create_database
from support.fakes.outcomes import outcome
from support.http.http_server import until
from tornado_idv import BackendResult, ByCard, ByNickname, Query, Unavailable
from tornado_idv.registry import opened_backend

pytestmark = pytest.mark.slow

MAX_LAG = 0.5
BEHIND = MAX_LAG + 0.2
"""Seconds after which a standby that replays nothing is behind, with some for a busy machine."""
OWN = {
    "by_nickname": "SELECT * FROM find_user($1)",
    "by_card": "SELECT nickname, card_number, plan FROM users WHERE card_number = $1",
}
FUNCTION = """CREATE FUNCTION find_user(name text) RETURNS SETOF users LANGUAGE plpgsql STABLE AS
'BEGIN RETURN QUERY SELECT * FROM users WHERE nickname = name; END';"""
PINNED = {"prepared_statements": False}
KINDS: dict[str, dict[str, Any]] = {
    "table": {},
    "pinned": PINNED,
    "own": OWN,
    "own, pinned": {**OWN, **PINNED},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        cluster.standby.run("ALTER SYSTEM SET wal_retrieve_retry_interval = '50ms'")
        cluster.standby.run("SELECT pg_reload_conf()")
        yield cluster


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Standbys, "settle_time", 0.3)
    monkeypatch.setattr(PostgresBackend, "retry_interval", 0.25)


@pytest.fixture
def database(cluster: Cluster) -> Iterator[Database]:
    database = create_database(cluster.primary, "standby")
    database.write(ALICE, table=USERS)
    database.run(FUNCTION)
    cluster.wait_for_replay()
    yield database
    database.close()


Run = Callable[..., Any]


@asynccontextmanager
async def running(
    cluster: Cluster,
    database: Database,
    role: str = "any",
    *ports: int,
    on_change: Callable[..., None] = lambda *_: None,
    **options: Any,
) -> AsyncIterator[PostgresBackend]:
    """Open a backend with this role and these servers, by default the standby and its primary."""
    ports = ports or (cluster.standby.port, cluster.primary.port)
    hosts = ",".join(map(address, ports))
    dsn = database.dsn.replace(address(database.server.port), hosts)
    given = {"timeout": "2s", "max_lag": f"{MAX_LAG}s", **options}
    backend = backend_of(database, dsn=f"{dsn}&target_session_attrs={role}", **given)
    backend.on_change(on_change)
    async with opened_backend(backend):
        yield backend


@pytest.fixture
def run(cluster: Cluster, database: Database) -> Run:
    return partial(running, cluster, database)


@asynccontextmanager
async def running_each(
    run: Run, standby: int, changes: dict[str, list[Sequence[Query]]] | None = None, **options: Any
) -> AsyncIterator[dict[str, PostgresBackend]]:
    """Open a backend of each kind on the standby alone; ``changes`` are those that they report."""
    backends = {}
    async with AsyncExitStack() as stack:
        for kind, kind_options in KINDS.items():
            reported: list[Sequence[Query]] = [] if changes is None else changes[kind]
            backend = run(
                "standby",
                standby,
                on_change=lambda *queries, reported=reported: reported.append(queries),
                **kind_options,
                **options,
            )
            backends[kind] = await stack.enter_async_context(backend)
        yield backends


def address(port: int) -> str:
    return f"127.0.0.1:{port}"


def add(database: Database, *names: str) -> None:
    for name in names:
        database.run(
            f"INSERT INTO users SELECT '{name}', (count(*) + 100)::text, 'Free' FROM users"
        )


@contextmanager
def replay_paused(cluster: Cluster) -> Iterator[None]:
    cluster.pause_replay()
    try:
        yield
    finally:
        cluster.resume_replay()


async def test_lookups_go_back_to_the_primary_when_it_was_restarted(
    cluster: Cluster, database: Database, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Meanwhile the standby, which receives no WAL, is believed of those who are found."""
    caplog.set_level(logging.INFO)
    primary, standby = cluster.primary.port, cluster.standby.port
    on_primary, on_standby = f"{address(primary)} (primary)", f"{address(standby)} (standby)"

    async with run() as backend:
        assert backend.servers == [(address(primary), "primary")]
        await asyncio.to_thread(cluster.primary.stop)
        try:
            await eventually(backend, "found")
            assert backend.servers == [(address(standby), "standby")]
            await until(lambda: f"backend tested: lookups use {on_standby}" in caplog.text)
            assert on_primary not in caplog.text
            for _ in range(100):
                assert await outcome(backend) == "found"
                assert (await outcome(backend, ByNickname("x"))).startswith("unavailable: ")
                await asyncio.sleep(0.005)
            assert "receives no WAL" in str(backend.problem)
        finally:
            await asyncio.to_thread(cluster.primary.start)
        async with asyncio.timeout(5):
            while backend.servers != [(address(primary), "primary")]:
                assert await outcome(backend) == "found"
                await asyncio.sleep(0.01)
        add(database, "new")
        assert await outcome(backend, ByNickname("new")) == "found"
        assert await outcome(backend, ByNickname("x")) == "not found"
        assert backend.problem is None
        await until(lambda: f"lookups use {on_primary}\n" in caplog.text)


async def test_user_that_a_standby_lacks_is_undetermined_while_it_is_behind(
    cluster: Cluster, database: Database, run: Run
) -> None:
    reason = f"{address(cluster.standby.port)} is a standby that may be behind by more than"

    async def look_up(kind: str, backend: PostgresBackend) -> None:
        await until(lambda: backend.problem is not None)  # without a lookup
        assert reason in str(backend.problem), kind
        names = ["new", "alice", "newer", "other"] * 4
        tasks = [asyncio.create_task(outcome(backend, ByNickname(each))) for each in names]
        ended = dict(zip(names, await asyncio.gather(*tasks), strict=True))
        assert ended.pop("alice") == "found", kind
        assert all(reason in each for each in ended.values()), kind
        with pytest.raises(Unavailable) as caught:
            await backend.find(ByCard("7"))
        assert not caught.value.counts_against_breaker, kind
        # Alice may be deleted, and the primary may be back before the answer expires.
        assert await backend.find(ByNickname("alice")) == BackendResult(ALICE, ttl=MAX_LAG), kind

    async with running_each(run, cluster.standby.port) as backends:
        for backend in backends.values():
            assert await outcome(backend, ByNickname("new")) == "not found"
            assert backend.problem is None
        with replay_paused(cluster):
            add(database, "new", "newer")
            await asyncio.sleep(BEHIND)
            await asyncio.gather(*(look_up(*each) for each in backends.items()))
        for backend in backends.values():
            await eventually(backend, "found", ByNickname("new"))
            assert await outcome(backend, ByNickname("other")) == "not found"
            assert backend.problem is None


async def test_lagging_standby_is_left(cluster: Cluster, database: Database, run: Run) -> None:
    primary, standby = (each.port for each in cluster.servers)
    with running_standby(cluster.primary) as other:
        async with run("standby", standby, other.port, primary) as backend:
            assert backend.servers == [(address(standby), "standby")]
            with replay_paused(cluster):
                add(database, "new")
                await asyncio.sleep(BEHIND)
                await eventually(backend, "found", ByNickname("new"))
                await uses_standby(backend, other.port)
                assert backend.problem is None
            other.run("SELECT pg_wal_replay_pause()")
            add(database, "newer")
            await uses_standby(backend, standby)
            # It may be back there at once, and "not found" is up to max_lag old.
            await eventually(backend, "found", ByNickname("newer"))


async def uses_standby(backend: PostgresBackend, port: int) -> None:
    """Look up until this standby is used, and follows."""
    async with asyncio.timeout(30):
        while backend.servers != [(address(port), "standby")] or backend.problem is not None:
            assert await outcome(backend) == "found"
            await asyncio.sleep(0.01)


async def test_lookups_go_back_to_a_standby_only_when_it_follows(
    cluster: Cluster, database: Database, run: Run
) -> None:
    ports = cluster.primary.port, cluster.standby.port
    primary, standby = map(address, ports)
    # A primary that does not respond in time is left, too.
    async with run("prefer-standby", *ports, timeout="30s") as backend:
        assert backend.servers == [(standby, "standby")]
        with replay_paused(cluster):
            add(database, "new")
            await asyncio.sleep(BEHIND)
            await eventually(backend, "found", ByNickname("new"))  # on the primary
            async with asyncio.timeout(30):
                while backend.servers != [(primary, "primary")]:
                    assert await outcome(backend) == "found"
            for _ in range(75):  # for two attempts to go back
                await asyncio.sleep(0.02)
                assert backend.servers == [(primary, "primary")]
            assert await outcome(backend, ByNickname("other")) == "not found"
        await until(lambda: backend.servers == [(standby, "standby")])
        assert await outcome(backend, ByNickname("new")) == "found"


async def test_old_answers_are_not_stored(cluster: Cluster, database: Database, run: Run) -> None:
    """Also those of a batch; and those of an idle standby are stored as soon as it has all."""
    changes: dict[str, list[Sequence[Query]]] = {kind: [] for kind in KINDS}

    async def look_up(kind: str, backend: PostgresBackend) -> None:
        await until(lambda: len(changes[kind]) > 1)
        for _ in range(3):
            queries = [ByNickname(name) for name in ("new", "alice", "other")] * 3
            results = await asyncio.gather(*map(backend.find, queries))
            old = [BackendResult(user, storable=False) for user in (None, ALICE, None)]
            assert results == old * 3, kind
            await asyncio.sleep(0.1)

    options = {"notify": {"dsn": database.dsn}, "max_lag": "60s"}
    async with running_each(run, cluster.standby.port, changes=changes, **options) as backends:
        await until(lambda: all(changes.values()))
        for backend in backends.values():
            await until_stored(backend)
        with replay_paused(cluster):
            add(database, "new")
            database.run("NOTIFY idv_users, 'new'")
            await asyncio.gather(*(look_up(*each) for each in backends.items()))
        for backend in backends.values():
            await until_stored(backend)
            assert await outcome(backend, ByNickname("new")) == "found"


async def until_stored(backend: PostgresBackend) -> None:
    async with asyncio.timeout(5):
        while True:
            if await backend.find(ByNickname("alice")) == ALICE:
                return
            await asyncio.sleep(0.01)

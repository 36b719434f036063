"""Backends with two servers, of which the second lacks the users and the canary."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from idv_postgres.backend import PostgresBackend
from support.databases.ldap_server import OPTIONS, LdapServer, person
from support.databases.ldap_server import require as require_slapd
from support.databases.postgres_backends import serving
from support.databases.postgres_cluster import running_cluster
from support.databases.postgres_server import (
    Database,
    PostgresServer,
    create_database,
    running_copy,
    running_server,
)
from support.fakes.outcomes import outcome
from support.http.http_server import until
from support.http.tcp_relay import Relay, relaying
from tornado_idv import Backend, ByNickname, Unavailable, User
from tornado_idv.kit.testing import make_backend
from tornado_idv.lookup.guard import Guard
from tornado_idv.registry import opened_backend

pytestmark = pytest.mark.slow
ALICE, BIRD = User("Pro", "4000123412341234", "alice"), User("Free", "9001", "idv-canary")
CANARY = {"nickname": "@idv-canary", "max_age": "1h"}
ALL, LIMIT = ("127.0.0.1",), 30.0


class Two(NamedTuple):
    guard: Guard
    first: Relay
    second: Relay

    async def find(self, nickname: str) -> User | None:
        deadline = asyncio.get_running_loop().time() + LIMIT
        answer = await self.guard.find(ByNickname(nickname), deadline)
        return None if answer is None else answer.user

    async def becomes(self, wanted: User | None, nickname: str) -> bool:
        """Return whether this is the answer soon; until then there may be none."""
        async with asyncio.timeout(LIMIT):
            while True:
                try:
                    return await self.find(nickname) == wanted
                except Unavailable:
                    await asyncio.sleep(0.01)

    async def comes_to(self, wanted: User) -> None:
        """Wait until this user is found."""
        async with asyncio.timeout(LIMIT):
            while True:
                if await self.becomes(wanted, wanted.nickname):
                    return
                await asyncio.sleep(0.01)

    async def fails_with(self, text: str) -> None:
        """Wait until this is why a user who is only at the first server is not found."""
        async with asyncio.timeout(LIMIT):
            while True:
                with pytest.raises(Unavailable) as failed:
                    await self.find("alice")
                if text in failed.value.reason:
                    return
                await asyncio.sleep(0.01)

    async def check_second_is_not_believed(self) -> None:
        """Lose the first server, and wait until it is used again when it is well."""
        assert await self.find("nobody") is None
        self.first.bar(ALL)
        await self.fails_with("canary @idv-canary is not found")
        self.first.bar(())
        assert await self.becomes(ALICE, "alice")
        assert await self.becomes(None, "nobody")


@asynccontextmanager
async def opened(
    kind: type[Backend[Any]], folder: Path, first: int, second: int, **options: Any
) -> AsyncIterator[Two]:
    async with relaying(first) as one, relaying(second) as other:
        text = json.dumps(options).replace("FIRST", f"127.0.0.1:{one.port}")
        text = text.replace("SECOND", f"127.0.0.1:{other.port}")
        backend = make_backend(kind, folder, canary=CANARY, **json.loads(text))
        async with opened_backend(backend):
            yield Two(Guard(backend, lambda _: True), one, other)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    require_slapd()
    users = [
        person(each.nickname, each.card_number, f"title: {each.plan}") for each in (ALICE, BIRD)
    ]
    with ExitStack() as stack:
        ports = []
        for name, persons in {"one": users, "two": [person("bob", "5")]}.items():
            server = LdapServer(tmp_path_factory.mktemp(name) / "slapd", persons=persons)
            ports.append(stack.enter_context(server).port)
        yield ports[0], ports[1]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresBackend, "check_interval", 0.05)
    monkeypatch.setattr(PostgresBackend, "retry_interval", 0.05)


class Databases(NamedTuple):
    """A database, and a server with a copy of its files that lacks two of four users."""

    first: Database
    copy: PostgresServer

    @property
    def ports(self) -> tuple[int, int]:
        return self.first.server.port, self.copy.port

    def dsn(self, hosts: str = "FIRST,SECOND", more: str = "") -> str:
        return self.first.dsn.replace(f"127.0.0.1:{self.ports[0]}", hosts) + more


PRIMARY = "&target_session_attrs=primary"


@pytest.fixture(scope="module")
def databases() -> Iterator[Databases]:
    with running_server() as server:
        database = create_database(server, "users")
        database.write(ALICE, BIRD, User("Free", "1", "carol"), User("Free", "2", "dave"))
        database.run("GRANT SELECT ON users TO idv")
        with running_copy(server) as copy:
            Database(copy, database.name).run("DELETE FROM users WHERE length(card_number) > 1")
            yield Databases(database, copy)


async def test_ldap_server_without_the_canary_is_not_believed(
    directories: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from idv_ldap import pool  # noqa: PLC0415 - only where python-ldap is installed
    from idv_ldap.backend import LdapBackend  # noqa: PLC0415

    monkeypatch.setattr(pool, "RETURN_INTERVAL", 0.05)
    uris = ["ldap://FIRST", "ldap://SECOND"]
    async with opened(LdapBackend, tmp_path, *directories, uris=uris, **OPTIONS) as both:
        await both.check_second_is_not_believed()


async def test_postgres_server_without_the_canary_is_not_believed(
    databases: Databases, tmp_path: Path
) -> None:
    dsn = databases.dsn(more=PRIMARY)
    async with opened(PostgresBackend, tmp_path, *databases.ports, dsn=dsn) as both:
        await both.check_second_is_not_believed()


@pytest.mark.parametrize("has_one_address", [False, True])
async def test_postgres_server_without_the_users_is_not_believed_without_a_canary(
    databases: Databases, monkeypatch: pytest.MonkeyPatch, *, has_one_address: bool
) -> None:
    """Its table has the same oid, as in a restored backup, also before the next regular check."""
    monkeypatch.setattr(PostgresBackend, "check_interval", 1000.0)
    database, copy = databases
    emptied = Database(copy, database.name)
    emptied.run("CREATE TABLE kept AS TABLE users; DELETE FROM users")
    async with relaying(database.server.port) as first:
        hosts = f"127.0.0.1:{first.port}" + f",127.0.0.1:{copy.port}" * (not has_one_address)
        async with serving(database, dsn=databases.dsn(hosts)) as backend:
            assert await outcome(backend) == "found"
            assert await outcome(backend, ByNickname("nobody")) == "not found"
            if has_one_address:
                first.target = copy.port
                first.cut()
            else:
                first.bar(ALL)
            results: list[str] = []
            while not any("lacks most of the old users" in each for each in results):
                results.append(await outcome(backend))
                await asyncio.sleep(0.01)
            assert "not found" not in results
            first.bar(())
            first.target = database.server.port
            await until(lambda: backend.problem is None)
            assert await outcome(backend) == "found"
    emptied.run("INSERT INTO users TABLE kept; DROP TABLE kept")


async def test_lookups_do_not_go_back_to_a_primary_of_before_a_failover(tmp_path: Path) -> None:
    """It lacks what was written since; but it is used while the new one cannot be reached."""
    with running_cluster() as cluster:
        old, new = cluster.servers
        database = create_database(old, "users")
        database.write(ALICE, BIRD)
        database.run("GRANT SELECT ON users TO idv")
        cluster.wait_for_replay()
        servers = Databases(database, new)
        dsn = servers.dsn(more=PRIMARY)
        async with opened(PostgresBackend, tmp_path, *servers.ports, dsn=dsn) as both:
            backend = both.guard.backend
            assert await both.find("alice") == ALICE
            both.first.bar(ALL)
            cluster.promote()
            promoted = [(f"127.0.0.1:{both.second.port}", "primary")]
            assert await both.becomes(ALICE, "alice")
            await until(lambda: backend.servers == promoted)
            both.first.bar(())
            checks = both.first.accepted
            await until(lambda: both.first.accepted > checks + 3)
            assert await both.becomes(None, "nobody")
            Database(new, database.name).run(
                "UPDATE users SET plan = 'New' WHERE nickname = 'alice'"
            )
            both.second.bar(ALL)
            await both.comes_to(ALICE)
            both.second.bar(())
            await both.comes_to(structs.replace(ALICE, plan="New"))

"""Services over a PostgreSQL server, and the faults of that server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from idv_postgres.options import PostgresOptions
from idv_postgres.schema import script
from support.databases.postgres_server import (
    Database,
    PostgresServer,
    create_database,
    running_server,
)
from support.faults.checker import Checker
from support.faults.client import Person
from support.faults.fault_catalogue import Scenario
from support.faults.harness import BACKEND_LIMITS, CONFIG, TIMES, Builder, Site
from support.faults.reference import Reference, Source


class PostgresSource(Source):
    """The table that ``tornado-idv postgres init`` makes, with notifications of changes."""

    def __init__(self, database: Database, letter: str, reference: Reference) -> None:
        self.database = database
        options = {"name": letter, "kind": "postgres", "dsn": database.dsn, "notify": {}}
        schema = script(PostgresOptions.model_validate(options))
        self._schema = schema.removeprefix("BEGIN;").rstrip().removesuffix("COMMIT;")
        super().__init__(letter, reference)

    def make(self) -> None:
        table = f"DROP TABLE IF EXISTS users; {self._schema} GRANT SELECT ON users TO idv;"
        self._commit(table + self._insert())

    def write(self) -> None:
        self._commit("DELETE FROM users;" + self._insert())

    def mark_silently(self) -> None:
        """Change the first user without a notification."""
        self.marker = self._edited(self.marker)
        self._change(self.marker)
        silence = "SET LOCAL session_replication_role = replica;"
        self._commit(f"{silence} DELETE FROM users; {self._insert()}")
        self.reference.end()

    def _insert(self) -> str:
        rows = ", ".join(_row(each) for each in self.people.values())
        return f"INSERT INTO users VALUES {rows};"

    def _commit(self, statements: str) -> None:
        """Commit at once, since a commit must survive a crash."""
        self.database.run(f"BEGIN; SET LOCAL synchronous_commit = on; {statements} COMMIT")


def _row(person: Person) -> str:
    return f"('{person.nickname}', '{person.card}', '{person.plan}', NULL)"


def of_server(source: PostgresSource) -> Iterator[Scenario]:
    """Yield the faults of a server, its connections and its table."""
    database, server = source.database, source.database.server
    yield Scenario("stopped", source, _stopped(server), blind=True, harms_file=False)
    yield Scenario("SIGSTOP", source, _suspended(server), blind=True, harms_file=False)
    restarts = {"restarted": signal.SIGINT, "crashed": signal.SIGQUIT}
    for name, number in restarts.items():
        inject = _restarted(server, number)
        yield Scenario(name, source, inject, blind=False, harms_file=False)
    cut = _once(database.disconnect)
    yield Scenario("connections cut", source, cut, blind=False, harms_file=False)
    drop = _once(database.run, "DROP TABLE users")
    yield Scenario("table dropped", source, drop, blind=True)


def _stopped(server: PostgresServer) -> Callable[[], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def inject() -> AsyncIterator[None]:
        await asyncio.to_thread(server.stop)
        yield
        await asyncio.to_thread(server.start)

    return inject


def _suspended(server: PostgresServer) -> Callable[[], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def inject() -> AsyncIterator[None]:
        server.pause()
        yield
        server.resume()

    return inject


def _restarted(
    server: PostgresServer, number: signal.Signals
) -> Callable[[], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def inject() -> AsyncIterator[None]:
        await asyncio.to_thread(server.stop, number)
        await asyncio.to_thread(server.start)
        yield

    return inject


def _once(
    function: Callable[..., object], *arguments: Any
) -> Callable[[], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def inject() -> AsyncIterator[None]:
        await asyncio.to_thread(function, *arguments)
        yield

    return inject


def reads(source: PostgresSource) -> str:
    """Return a backend over the database."""
    return (
        f"  - {{name: {source.letter}, kind: postgres, dsn: '{source.database.dsn}', notify: {{}},"
        f" pool: {{max: 5}}, {BACKEND_LIMITS}}}\n"
    )


@asynccontextmanager
async def running_postgres_sites(
    folder: Path, max_seconds: float, replicas: Sequence[int] = (1, 3)
) -> AsyncIterator[list[Site]]:
    """Run so many services over a server of their own, for each number and a limited time."""
    async with AsyncExitStack() as stack:
        yield [await _site(Builder(folder, max_seconds, stack), stack, each) for each in replicas]


async def _site(build: Builder, stack: AsyncExitStack, replicas: int) -> Site:
    server = stack.enter_context(running_server())
    reference = Reference()
    source = PostgresSource(create_database(server, "users"), "p", reference)
    names = [f"postgres-{replicas}-{number}" for number in range(replicas)]
    services = await build.serve(**dict.fromkeys(names, CONFIG + reads(source)))
    name = f"postgres, {replicas} replicas" if replicas > 1 else "postgres"
    ports = [service.port for service in services.values()]
    return Site(name, ports, Checker(reference, TIMES, ""), [source], [*of_server(source)])

"""Services over a PostgreSQL server, and the faults of the server."""

import re
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from idv_postgres.options import PostgresOptions
from idv_postgres.schema import script
from soak.checker import Checker
from soak.fault_catalogue import Scenario, injected, repeated
from soak.harness import BACKEND_LIMITS, CONFIG, TIMES, Builder, Site
from soak.people import Person
from soak.reference import Reference, Source
from support.databases.postgres_server import (
    Database,
    PostgresServer,
    create_database,
    running_server,
)


class PostgresSource(Source):
    """The table of ``tornado-idv postgres init``, with notifications of changes."""

    def __init__(self, database: Database, letter: str, reference: Reference) -> None:
        self.database = database
        options = {"name": letter, "kind": "postgres", "dsn": database.dsn, "notify": {}}
        schema = script(PostgresOptions.model_validate(options))
        self.schema = schema.removeprefix("BEGIN;").rstrip().removesuffix("COMMIT;")
        super().__init__(letter, reference)

    def make(self) -> None:
        table = f"DROP TABLE IF EXISTS users; {self.schema} GRANT SELECT ON users TO idv;"
        self._commit(table + self._insert())

    def write(self) -> None:
        self._commit("DELETE FROM users;" + self._insert())

    def mark_silently(self) -> None:
        """Change the first user without a notification.

        During the change, the trigger function does nothing. The triggers are not disabled, because
        that needs a lock, and sessions behind a blocked relay may hold it.
        """
        self.marker = self._edited(self.marker)
        self._change(self.marker)
        function = re.search(
            r"CREATE OR REPLACE (FUNCTION .*?) AS \$idv\$.*?\$idv\$;", self.schema, re.DOTALL
        )
        assert function is not None
        silent = f"CREATE OR REPLACE {function[1]} AS 'BEGIN RETURN NULL; END';"
        self._commit(f"{silent} DELETE FROM users; {self._insert()} {function[0]}")
        self.reference.end()

    def _insert(self) -> str:
        rows = ", ".join(row_of(each) for each in self.people.values())
        return f"INSERT INTO users VALUES {rows};"

    def _commit(self, statements: str) -> None:
        """Run statements in a transaction. Its commit is synchronous, to survive a crash."""
        self.database.run(f"BEGIN; SET LOCAL synchronous_commit = on; {statements} COMMIT")


def row_of(person: Person) -> str:
    return f"('{person.nickname}', '{person.card}', '{person.plan}', NULL)"


def of_server(source: PostgresSource) -> Iterator[Scenario]:
    """Yield the faults of a server, its connections and its table."""
    database, server = source.database, source.database.server
    stop = injected(server.stop, server.start)
    yield Scenario("stopped", source, stop, blind=True, harms_file=False)
    pause = injected(server.pause, server.resume)
    yield Scenario("SIGSTOP", source, pause, blind=True, harms_file=False)
    restarts = {"restarted": signal.SIGINT, "crashed": signal.SIGQUIT}
    for name, number in restarts.items():
        inject = injected(partial(_restart, server, number))
        yield Scenario(name, source, inject, blind=False, harms_file=False)
    cut = injected(database.disconnect)
    yield Scenario("connections cut", source, cut, blind=False, harms_file=False)
    drop = injected(partial(database.run, "DROP TABLE users"))
    yield Scenario("table dropped", source, drop, blind=True)


_OTHER_TABLE = """
    CREATE TABLE {0}.users (nickname text, card_number text, plan text, profile_url text);
    GRANT USAGE ON SCHEMA {0} TO idv; GRANT ALL ON {0}.users TO idv;
"""
_RELOAD = """
    BEGIN; CREATE TEMP TABLE kept ON COMMIT DROP AS TABLE users; TRUNCATE users;
    SELECT pg_sleep(0.05); INSERT INTO users SELECT * FROM kept; COMMIT
"""
_SWAP = """
    BEGIN; CREATE TABLE new_users (LIKE users INCLUDING ALL); INSERT INTO new_users TABLE users;
    ALTER TABLE users RENAME TO old_users; ALTER TABLE new_users RENAME TO users;
    GRANT SELECT ON users TO idv; DROP TABLE old_users; {} COMMIT
"""


def of_table(source: PostgresSource) -> Iterator[Scenario]:
    """Yield changes of the table of which the service is not notified.

    Another table hides or replaces the table, permissions are lost, or the table is loaded again.
    """
    yield _sql("empty table in a schema of the role", source, _SHADOW, "DROP SCHEMA idv CASCADE")
    undo = "ALTER ROLE idv RESET search_path; DROP SCHEMA other CASCADE"
    yield _sql("other search_path", source, _OTHER_PATH, undo)
    grant = "GRANT SELECT ON users TO idv"
    yield _sql("rights revoked", source, "REVOKE ALL ON users FROM idv", grant, blind=True)
    security = "ALTER TABLE users {} ROW LEVEL SECURITY".format
    yield _sql("rows hidden", source, security("ENABLE"), security("DISABLE"), blind=True)
    again = "BEGIN; DROP TABLE users;" + _OTHER_TABLE.format("public") + "COMMIT"
    inject = injected(partial(source.database.run, again))
    yield Scenario("dropped and created empty", source, inject, blind=True)
    yield _sql("exchanged for a copy", source, _SWAP.format(source.schema), "SELECT")
    inject = repeated(partial(source.database.run, _RELOAD))
    yield Scenario("loaded again and again", source, inject, blind=False, harms_file=False)


_SHADOW = "CREATE SCHEMA idv;" + _OTHER_TABLE.format("idv")
_OTHER_PATH = (
    "CREATE SCHEMA other;"
    + _OTHER_TABLE.format("other")
    + "ALTER ROLE idv SET search_path = other, public"
)


def _sql(
    name: str, source: PostgresSource, statements: str, undo: str, *, blind: bool = False
) -> Scenario:
    """Return a fault that runs SQL. When it begins and ends, all sessions are disconnected."""
    database = source.database

    def run(script: str) -> None:
        database.run(script)
        database.disconnect()

    inject = injected(partial(run, statements), partial(run, undo))
    return Scenario(name, source, inject, blind=blind, harms_file=False)


def _restart(server: PostgresServer, number: signal.Signals) -> None:
    server.stop(number)
    server.start()


_FUNCTIONS = """
    CREATE FUNCTION by_nickname(text) RETURNS SETOF users LANGUAGE plpgsql STABLE AS
        'BEGIN RETURN QUERY SELECT * FROM users WHERE nickname = $1; END';
    CREATE FUNCTION by_card(text) RETURNS SETOF users LANGUAGE plpgsql STABLE AS
        'BEGIN RETURN QUERY SELECT * FROM users WHERE card_number = $1; END';
"""
_QUERIES = (
    "by_nickname: 'SELECT * FROM public.by_nickname($1)', "
    "by_card: 'SELECT * FROM public.by_card($1)'"
)


def reads(source: PostgresSource, access: str = "notify: {}") -> str:
    """Return the configuration of a backend over the database."""
    return (
        f"  - {{name: {source.letter}, kind: postgres, dsn: '{source.database.dsn}', {access},"
        f" pool: {{max: 5}}, {BACKEND_LIMITS}}}\n"
    )


@asynccontextmanager
async def running_postgres_sites(
    folder: Path, max_seconds: float, replicas: Sequence[int] = (1, 3), *, queries: bool = True
) -> AsyncIterator[list[Site]]:
    """Run services over PostgreSQL servers, for at most ``max_seconds``.

    For each number in ``replicas``, as many services share one server. With ``queries``, another
    service over another server reads its table through functions.
    """
    async with AsyncExitStack() as stack:
        build = Builder(folder, max_seconds, stack)
        sites = [await _site(build, stack, each) for each in replicas]
        if queries:
            sites.append(await _site_of_queries(build, stack))
        yield sites


async def _site(build: Builder, stack: AsyncExitStack, replicas: int) -> Site:
    server = stack.enter_context(running_server())
    reference = Reference()
    source = PostgresSource(create_database(server, "users"), "p", reference)
    names = [f"postgres-{replicas}-{number}" for number in range(replicas)]
    services = await build.serve(**dict.fromkeys(names, CONFIG + reads(source)))
    name = f"postgres, {replicas} replicas" if replicas > 1 else "postgres"
    ports = [service.port for service in services.values()]
    scenarios = [*of_server(source), *of_table(source)]
    return Site(name, ports, Checker(reference, TIMES, ""), [source], scenarios)


async def _site_of_queries(build: Builder, stack: AsyncExitStack) -> Site:
    """Return a service that reads users through functions. It does not notice edits.

    The functions need the table, so faults that drop the table are left out.
    """
    server = stack.enter_context(running_server())
    reference = Reference()
    source = PostgresSource(create_database(server, "users"), "q", reference)
    source.database.run(_FUNCTIONS)
    config = CONFIG + reads(source, f"{_QUERIES}, cache_ttl: {TIMES.ttl * 1000:.0f}ms")
    services = await build.serve(**{"postgres-queries": config})
    drops = ("table dropped", "dropped and created empty", "exchanged for a copy")
    faults = [*of_server(source), *of_table(source)]
    scenarios = [each for each in faults if each.name not in drops]
    ports = [service.port for service in services.values()]
    return Site("postgres, functions", ports, Checker(reference, TIMES, "q"), [source], scenarios)

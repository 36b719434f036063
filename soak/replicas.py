"""Three services over one PostgreSQL cluster and one Redis server."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import aiohttp

from soak.checker import Checker
from soak.harness import TIMES, Builder, Change, Site
from soak.people import SITE
from soak.postgres import PostgresSource
from soak.reference import Reference
from soak.replica_changes import Caller, Edit, Keys, Purge, SharedAnswer, key_store
from soak.replica_faults import PostgresFaults, cut_off, of_redis
from support.databases.key_stores import add, record
from support.databases.postgres_cluster import Cluster, running_cluster
from support.databases.postgres_server import Database, create_database
from support.databases.redis_server import RedisServer
from support.databases.redis_server import running_server as running_redis
from support.http.tcp_relay import Relay, relaying
from support.processes.process import ServiceProcess
from support.processes.service import KEY

_TIMES = replace(TIMES, lag=1.0)
_SHARED_TIMEOUT = 0.25
"""Timeout of the shared cache in seconds. With six servers on two cores, the default of 20 ms is
often exceeded, but a service counts as recovered only when it uses the shared cache again."""
_CONFIG = """\
profile_sites: [{site}]
server: {{port: 0, request_timeout: {timeout:.0f}ms}}
admin: {{port: 0}}
auth: {{store: '{dsn}'}}
cache: {{ttl: {ttl:.0f}ms, negative_ttl: {negative_ttl:.0f}ms, stale_if_error: {stale:.0f}ms,
        failure_memo: 300ms}}
shared_cache: {{kind: redis, url: 'redis://127.0.0.1:{redis}/0', secret: {secret},
        timeout: {shared_timeout:.0f}ms}}
logging: {{level: warning}}
backends:
  - {{name: p, kind: postgres, dsn: '{dsn}', notify: {{}}, pool: {{max: 5}}}}
"""


def _config(dsn: str, redis: int) -> str:
    return _CONFIG.format(
        site=SITE,
        timeout=_TIMES.timeout * 1000,
        shared_timeout=_SHARED_TIMEOUT * 1000,
        ttl=_TIMES.seen_ttl * 1000,
        negative_ttl=_TIMES.negative_ttl * 1000,
        stale=_TIMES.stale * 1000,
        dsn=dsn,
        redis=redis,
        secret="canary" * 8,
    )


def _make_key_store(database: Database) -> None:
    # An acknowledged change must survive a crash.
    database.run(f"ALTER DATABASE {database.name} SET synchronous_commit = on")
    with closing(key_store(database)) as location:
        location.create()
        add(location, record("caller", KEY))
    database.run(
        "GRANT USAGE ON SCHEMA idv_keys TO idv;"
        "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA idv_keys TO idv"
    )


@asynccontextmanager
async def running_replicas(
    folder: Path, max_seconds: float, without: Collection[str] = ()
) -> AsyncIterator[list[Site]]:
    """Run three services, for at most ``max_seconds``. The first reaches all servers by relays.

    ``without`` has the names of scenarios to leave out.
    """
    async with AsyncExitStack() as stack:
        cluster = stack.enter_context(running_cluster())
        redis = stack.enter_context(running_redis())
        database = create_database(cluster.primary, "users")
        reference = Reference()
        source = PostgresSource(database, "p", reference)
        await asyncio.to_thread(_make_key_store, database)
        targets = [*(each.port for each in cluster.servers), redis.port]
        relays = [await stack.enter_async_context(relaying(each)) for each in targets]
        services = await _serve(
            Builder(folder, max_seconds, stack), cluster, database, redis, relays
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        caller = Caller(session, services)
        changes: list[Change] = [Edit(source, caller), Purge(source, caller)]
        changes += [Keys(database, caller), SharedAnswer(database, caller, caller.ports[1:])]
        scenarios = [
            *of_redis(source, redis, relays[2]),
            cut_off(source, relays[:2], caller.ports[0]),
            *PostgresFaults(source, cluster).scenarios(),
        ]
        scenarios = [each for each in scenarios if each.name not in without]
        checker = Checker(reference, _TIMES, "", strict=True)
        yield [Site("replicas", caller.ports, checker, [source], scenarios, changes)]


async def _serve(
    build: Builder, cluster: Cluster, database: Database, redis: RedisServer, relays: list[Relay]
) -> list[ServiceProcess]:
    ports = relays[0].port, relays[1].port
    relayed = _config(cluster.dsn(database.name, ports), relays[2].port)
    direct = _config(cluster.dsn(database.name), redis.port)
    first = await build.serve(**{"replica-0": relayed})
    others = await build.serve(**{"replica-1": direct, "replica-2": direct})
    return [*first.values(), *others.values()]

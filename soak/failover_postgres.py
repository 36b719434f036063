"""Services over a PostgreSQL primary and a standby. The standby falls behind, or is promoted.

Faults that no service can detect are left out (docs/explanation/cache.md):

- split brain of users: here, the old primary is always stopped before the promotion;
- a promotion without the last writes: here, the standby has replayed them;
- a hanging receiver: here, nothing is written to a primary that hangs.
"""

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp

from soak.checker import Checker
from soak.failover_edits import LIMITS, editing
from soak.failover_postgres_faults import MAX_LAG, ClusterFaults, ClusterSource
from soak.harness import CONFIG, TIMES, Builder, Change, Site
from soak.reference import Reference
from soak.replica_changes import Caller, Edit
from support.databases.pgbouncer import PGBOUNCER, running_pooler
from support.databases.postgres_cluster import Cluster, running_cluster

_TIMES = replace(TIMES, ttl=0.5, negative_ttl=0.5, lag=MAX_LAG + 1)
_NOTIFIED = "negative_ttl: 6s, notify: {}"
"""Options with notifications. Only they can purge "not found", cached for longer than a fault."""
_UNNOTIFIED = f"cache_ttl: {_TIMES.ttl}s, negative_ttl: {_TIMES.negative_ttl}s"
_SETTINGS = "\nwal_keep_size = 256MB\nwal_retrieve_retry_interval = 300ms\n"
"""Settings with which a disconnected standby follows again soon."""


class OnPrimary:
    """A check that the processes at ``ports`` use the primary: a user only there is found."""

    name = "primary"

    def __init__(self, source: ClusterSource, caller: Caller, ports: Collection[int]) -> None:
        self._source, self._caller, self._ports = source, caller, ports

    async def make(self) -> None:
        """Do nothing: each call of `is_seen` creates a user."""

    async def is_seen(self, port: int) -> bool:
        if port not in self._ports:
            return True
        async with self._source.without_replay() as nickname:
            status, _ = await self._caller.ask(port, nickname)
        return status == 200


def _configs(cluster: Cluster, database: str, pooler: int | None) -> dict[str, str]:
    """Return the configuration of each process, by name. Processes any-… prefer the primary."""

    def config(access: str, role: str, dsn: str | None = None) -> str:
        dsn = dsn or cluster.dsn(database, role=role)
        return (
            f"{CONFIG}  - {{name: p, kind: postgres, dsn: '{dsn}', {access}, pool: {{max: 3}},"
            f" {LIMITS}}}\n"
        )

    configs = {
        "any-1": config(_NOTIFIED, "any"),
        "any-2": config(_NOTIFIED, "any"),
        "any-unnotified": config(_UNNOTIFIED, "any"),
        "standby": config(_NOTIFIED, "standby"),
        "prefer-standby": config(_NOTIFIED, "prefer-standby"),
    }
    if pooler is not None:
        standby = cluster.servers[1]
        dsn = standby.dsn(database).replace(f":{standby.port}/", f":{pooler}/")
        access = _NOTIFIED.replace("{}", f"{{dsn: '{cluster.dsn(database)}'}}")
        configs["pooled"] = config(f"{access}, prepared_statements: false", "any", dsn)
    return configs


@asynccontextmanager
async def running_postgres_failover(
    folder: Path, max_seconds: float, only: Collection[str] = ()
) -> AsyncIterator[list[Site]]:
    """Run services over one cluster, for at most ``max_seconds``. ``only`` selects scenarios."""
    async with AsyncExitStack() as stack:
        cluster = stack.enter_context(running_cluster())
        for server in cluster.servers:
            with (server.data / "postgresql.conf").open("a") as file:
                file.write(_SETTINGS)
            server.run("SELECT pg_reload_conf()")
        reference = Reference()
        source = ClusterSource(cluster, reference)
        cluster.wait_for_replay()
        pooler = None
        if PGBOUNCER is not None:
            settings = "server_login_retry = 0.3"
            pooler = stack.enter_context(running_pooler(cluster.servers[1], settings))
        configs = _configs(cluster, source.database.name, pooler)
        services = await Builder(folder, max_seconds, stack).serve(**configs)
        ports = {name: service.port for name, service in services.items()}
        direct = [port for name, port in ports.items() if name.startswith("any")]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        caller = Caller(session, [*services.values()])
        edit = Edit(source, caller)
        changes: list[Change] = [edit, OnPrimary(source, caller, direct)]
        scenarios = ClusterFaults(source, edit, direct).scenarios(caller.ports)
        checker = Checker(reference, _TIMES, "", strict=True, unnotified=[ports["any-unnotified"]])
        chosen = [each for each in scenarios if not only or each.name in only]
        await stack.enter_async_context(editing(source))
        yield [Site("failover, PostgreSQL", caller.ports, checker, [source], chosen, changes)]

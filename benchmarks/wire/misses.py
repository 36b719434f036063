"""CPU time of an uncached lookup over HTTP, compared with a bare function on the same driver.

The peer is `benchmarks.peers.asgi_source`, without guard, log, limit or metric. Both have 32
callers and look up the same users, who exist. The source runs on the load's core. The figure is the
CPU time of the server's process: waiting for the source or for a busy core does not count.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks import dataset, postgres, postgres_server
from benchmarks.figures import Figure, Target, ratio
from benchmarks.plan import Plan
from benchmarks.wire import contenders, proxy, traffic, wrk
from benchmarks.wire.contenders import Contender
from benchmarks.wire.our_service import OurService, over_sqlite
from benchmarks.wire.throughput import cpus, interleaved_loads

_TARGETS = {"SQLite": 1.25, "upstream": 1.2, "PostgreSQL": 0.6}
"""Targets by source: our CPU time divided by the peer's."""


async def misses(plan: Plan) -> list[Figure]:
    """Measure each source below this service and below the peer."""
    if plan.skip("misses", wrk.missing()):
        return []
    async with _sources(plan) as sources:
        sides = {}
        for source, (ours, contract) in sources.items():
            sides[_ours(source)] = ours
            for each in contenders.peers(plan, contract, [contenders.ASGI_SOURCE]).values():
                sides[_peer(source)] = each
        async with contenders.run_all(plan, sides) as servers:
            loads = await interleaved_loads(
                plan, {name: (server, traffic.uniform) for name, server in servers.items()}
            )
    used = {name: cpus(each) for name, each in loads.items()}
    figures = [
        Figure("CPU of a response", "µs", tuple(each * 1e6 for each in cpu), of=name)
        for name, cpu in used.items()
    ]
    return figures + [
        ratio(
            f"CPU time of a response, {source}: this service / raw ASGI",
            used[_ours(source)],
            used[_peer(source)],
            Target("most", _TARGETS[source]),
        )
        for source in sources
        if _peer(source) in used
    ]


def _ours(source: str) -> str:
    return f"{source}: this service"


def _peer(source: str) -> str:
    return f"{source}: {contenders.ASGI_SOURCE}"


@asynccontextmanager
async def _sources(plan: Plan) -> AsyncIterator[dict[str, tuple[Contender, Path]]]:
    """Run the sources; yield this service over each, and the peer's contract."""
    file = dataset.table(plan, plan.keys)
    service = OurService(plan.folder, over_sqlite(plan, plan.keys), uncached=True)
    async with AsyncExitStack() as stack:
        stub, contract = await stack.enter_async_context(proxy.directory(plan))
        sources = {
            "SQLite": (Contender(service), _contract(plan, "sqlite", path=str(file))),
            "upstream": (proxy.ours(plan, stub)[proxy.OURS], contract),
        }
        if not plan.skip("misses in PostgreSQL", postgres_server.missing()):
            running = postgres_server.running(plan, wrk.CONNECTIONS)
            dsn = await stack.enter_async_context(running)
            ours = postgres.ours(plan, dsn)[postgres.OURS]
            sources["PostgreSQL"] = ours, _contract(plan, "postgres", dsn=dsn)
        yield sources


def _contract(plan: Plan, name: str, **source: str) -> Path:
    file = plan.folder / f"misses-{name}.json"
    return contenders.write_contract(file, 0, {**source, "site": dataset.SITE})

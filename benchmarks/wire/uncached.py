"""Lookups over HTTP without cache hits, by kind of backend."""

from __future__ import annotations

import os
from functools import partial

from benchmarks.figures import Figure
from benchmarks.plan import Plan
from benchmarks.wire import contenders, traffic, wrk
from benchmarks.wire.contenders import Contender
from benchmarks.wire.our_service import OurService, over_sqlite, over_upstream, over_yaml
from benchmarks.wire.throughput import interleaved_loads, of_one


async def uncached(plan: Plan) -> list[Figure]:
    """Measure a fixture, the largest SQLite table, and another instance on the load's core."""
    if plan.skip("uncached", wrk.missing()):
        return []
    users = max(plan.users)
    service = partial(OurService, plan.folder, uncached=True)
    (origin, origin_side), *_ = contenders.ours(plan).items()
    async with contenders.run_contender(plan, f"{origin} as origin", origin_side) as upstream:
        os.sched_setaffinity(upstream.pid, {plan.load_core})
        sides = {
            f"YAML, {plan.keys:,} users": Contender(service(over_yaml(plan))),
            f"SQLite, {users:,} users": Contender(service(over_sqlite(plan, users))),
            "proxying to another instance": Contender(service(over_upstream(upstream.port))),
        }
        async with contenders.run_all(plan, sides) as servers:
            loads = await interleaved_loads(
                plan, {name: (server, traffic.varying) for name, server in servers.items()}
            )
    return [figure for name, each in loads.items() for figure in of_one(f"{name}, uncached", each)]

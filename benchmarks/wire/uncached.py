"""Lookups over HTTP that no cache of ours answers, by kind of backend."""

from __future__ import annotations

import os
from functools import partial

from benchmarks.figures import Figure
from benchmarks.plan import Plan
from benchmarks.wire import servers, traffic, wrk
from benchmarks.wire.ourselves import Ourselves, over_sqlite, over_upstream, over_yaml
from benchmarks.wire.servers import Side
from benchmarks.wire.throughput import in_turns, of_one


async def uncached(plan: Plan) -> list[Figure]:
    """A fixture, the largest SQLite table, and another instance, which is on the load's core."""
    if plan.leaves_out("backends", wrk.missing()):
        return []
    users = max(plan.users)
    service = partial(Ourselves, plan.folder, uncached=True)
    (origin, origin_side), *_ = servers.ours(plan).items()
    async with servers.running_side(plan, f"{origin} as origin", origin_side) as upstream:
        os.sched_setaffinity(upstream.pid, {plan.load_core})
        sides = {
            f"YAML, {plan.keys:,} users": Side(service(over_yaml(plan))),
            f"SQLite, {users:,} users": Side(service(over_sqlite(plan, users))),
            "proxying to another instance": Side(service(over_upstream(upstream.port))),
        }
        async with servers.started(plan, sides) as there:
            loads = await in_turns(
                plan, {name: (server, traffic.uniform) for name, server in there.items()}
            )
    return [figure for name, each in loads.items() for figure in of_one(f"{name}, uncached", each)]

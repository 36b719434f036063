"""Latency at half of each server's capacity."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.figures import Figure
from benchmarks.plan import Plan
from benchmarks.rounds import interleave
from benchmarks.wire import contenders, wrk
from benchmarks.wire.process import Server
from benchmarks.wire.traffic import uniform

_SHARE = 0.5


async def latency(plan: Plan) -> list[Figure]:
    """Measure the capacity of each server, then its latency at about half of this."""
    if plan.skip("latency", wrk.missing()):
        return []
    async with contenders.run_all(plan, contenders.all_contenders(plan)) as servers:
        capacity: dict[str, float] = {}
        with plan.step("capacity", len(servers)) as advance:
            for name, server in servers.items():
                capacity[name] = (await wrk.load(plan, server, uniform)).rate
                advance()

        async def run_paced(name: str, server: Server) -> wrk.Load:
            return await wrk.paced(plan, server, uniform, capacity[name] * _SHARE)

        loads = await interleave(
            plan,
            "paced load",
            {name: partial(run_paced, name, each) for name, each in servers.items()},
        )
    return [figure for name in loads for figure in _of_one(name, loads[name], capacity[name])]


def _of_one(name: str, loads: Sequence[wrk.Load], capacity: float) -> list[Figure]:
    shares = tuple(load.rate / capacity * 100 for load in loads)
    return [
        Figure("p50", "ms", tuple(load.p50 * 1000 for load in loads), of=name),
        Figure("p99", "ms", tuple(load.p99 * 1000 for load in loads), of=name),
        Figure("load", "% of its capacity", shares, of=name),
    ]

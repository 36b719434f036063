"""How long callers wait at half of what a server can answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.figures import Figure
from benchmarks.plan import Plan
from benchmarks.rounds import take_turns
from benchmarks.wire import servers, wrk
from benchmarks.wire.server import Server
from benchmarks.wire.traffic import uniform

_SHARE = 0.5


async def latency(plan: Plan) -> list[Figure]:
    """Each side at about half of its own capacity, which is found first; the share is told."""
    if plan.leaves_out("latency", wrk.missing()):
        return []
    async with servers.started(plan, servers.every(plan)) as there:
        capacity: dict[str, float] = {}
        with plan.step("capacity", len(there)) as advance:
            for name, server in there.items():
                capacity[name] = (await wrk.load(plan, server, uniform)).rate
                advance()

        async def bear(name: str, server: Server) -> wrk.Load:
            return await wrk.paced(plan, server, uniform, capacity[name] * _SHARE)

        loads = await take_turns(
            plan, "paced load", {name: partial(bear, name, each) for name, each in there.items()}
        )
    return [figure for name in loads for figure in _of_one(name, loads[name], capacity[name])]


def _of_one(name: str, loads: Sequence[wrk.Load], capacity: float) -> list[Figure]:
    shares = tuple(load.rate / capacity * 100 for load in loads)
    return [
        Figure("p50", "ms", tuple(load.p50 * 1000 for load in loads), of=name),
        Figure("p99", "ms", tuple(load.p99 * 1000 for load in loads), of=name),
        Figure("at", "% of its capacity", shares, of=name),
    ]

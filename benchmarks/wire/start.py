"""Time from the start of a server to its first response."""

from __future__ import annotations

from functools import partial

from benchmarks.figures import Figure
from benchmarks.plan import Plan
from benchmarks.rounds import interleave
from benchmarks.wire import contenders
from benchmarks.wire.contenders import Contender


async def cold_start(plan: Plan) -> list[Figure]:
    """Start each server in each round. It loads all users."""

    async def first_response(name: str, side: Contender) -> float:
        async with contenders.run_contender(plan, name, side) as server:
            side.check(server, plan.keys)
            return server.start

    sides = contenders.all_contenders(plan)
    timings = await interleave(
        plan, "starts", {name: partial(first_response, name, each) for name, each in sides.items()}
    )
    return [
        Figure("to first response", "s", tuple(each), of=name) for name, each in timings.items()
    ]

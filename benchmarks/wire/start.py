"""How long a server takes from its start to its first good answer."""

from __future__ import annotations

from functools import partial

from benchmarks.figures import Figure
from benchmarks.plan import Plan
from benchmarks.rounds import take_turns
from benchmarks.wire import servers
from benchmarks.wire.servers import Side


async def cold_start(plan: Plan) -> list[Figure]:
    """Each side started anew in each round, with all of its users to read."""

    async def first_answer(name: str, side: Side) -> float:
        async with servers.running_side(plan, name, side) as server:
            side.check(server, plan.keys)
            return server.start

    sides = servers.every(plan)
    taken = await take_turns(
        plan, "starts", {name: partial(first_answer, name, each) for name, each in sides.items()}
    )
    return [Figure("to first answer", "s", tuple(each), of=name) for name, each in taken.items()]

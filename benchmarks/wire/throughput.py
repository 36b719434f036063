"""Responses per second, CPU time and memory of every contender under uniform traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.figures import Figure, Target, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import interleave
from benchmarks.wire import contenders, wrk
from benchmarks.wire.process import Server
from benchmarks.wire.traffic import Mix, uniform

Loads = Mapping[str, Sequence[wrk.Load]]

_COMPARED = (
    (contenders.OURS, contenders.AIOHTTP, 3.0),
    (contenders.OURS, contenders.FASTAPI, 8.0),
    (contenders.OURS, contenders.ASGI, 1.5),
    (contenders.OURS, contenders.NGINX, 0.5),
)
"""Targets: a contender of this project, a peer, and the minimum ratio of throughput."""


async def throughput(plan: Plan) -> list[Figure]:
    """Measure every contender with the same requests at full speed."""
    if plan.skip("throughput", wrk.missing()):
        return []
    async with contenders.run_all(plan, contenders.all_contenders(plan)) as servers:
        loads = await interleaved_loads(
            plan, {name: (server, uniform) for name, server in servers.items()}
        )
        memory = {name: server.resident() for name, server in servers.items()}
    figures = [figure for name, each in loads.items() for figure in of_one(name, each)]
    ours = rates(loads[contenders.OURS])
    figures += [
        replace(ratio("relative to ours", rates(each), ours), of=name)
        for name, each in loads.items()
    ]
    figures += [Figure("memory", "MiB", (memory[name],), of=name) for name in memory]
    return figures + [
        figure
        for us, peer, least in _COMPARED
        if peer in loads
        for figure in _compare(loads, us, peer, least)
    ]


async def interleaved_loads(plan: Plan, targets: Mapping[str, tuple[Server, Mix]]) -> Loads:
    """Return the load of each server in each round."""

    async def run(server: Server, mix: Mix) -> wrk.Load:
        return await wrk.load(plan, server, mix)

    return await interleave(
        plan, "load", {name: partial(run, *each) for name, each in targets.items()}
    )


def rates(loads: Sequence[wrk.Work]) -> list[float]:
    return [each.rate for each in loads]


def cpus(loads: Sequence[wrk.Work]) -> list[float]:
    return [each.cpu for each in loads]


def of_one(what: str, loads: Sequence[wrk.Work]) -> list[Figure]:
    """Return the figures of one server."""
    return [
        Figure("responses", "/s", tuple(rates(loads)), of=what),
        Figure("CPU for 1,000", "ms", tuple(each.cpu * 1e6 for each in loads), of=what),
    ]


def _compare(loads: Loads, us: str, peer: str, least: float) -> list[Figure]:
    """Return the ratios of throughput and of CPU time between this service and a peer."""
    what = f"responses of {us} / {peer}"
    ours, theirs = loads[us], loads[peer]
    return [
        ratio(f"{what}, by CPU time", cpus(theirs), cpus(ours)),
        ratio(what, rates(ours), rates(theirs), Target("least", least)),
    ]

"""Answers a second, CPU and memory: every side under uniform traffic, and ours under each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.figures import Figure, Promise, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import take_turns
from benchmarks.wire import servers, wrk
from benchmarks.wire.server import Server
from benchmarks.wire.traffic import MIXES, Mix, uniform

Loads = Mapping[str, Sequence[wrk.Load]]

_BESIDE = {
    servers.TORNADO: (servers.WITHOUT_PACKETS, 3.3),
    servers.STARLETTE: (servers.WITHOUT_PACKETS, 1.0),
    servers.AIOHTTP: (servers.WITHOUT_PACKETS, 1.0),
    servers.FASTAPI: (servers.WITHOUT_PACKETS, 2.5),
    servers.ASGI: (servers.OURS, 1.5),
    servers.NGINX: (servers.OURS, 0.5),
}
"""How many times the throughput of a peer we promise, and with which of our sides."""

_LOSS = Promise("least", 0.97)
_REFUSAL = Promise("most", 1)
_NEVER = "never repeating"


async def throughput(plan: Plan) -> list[Figure]:
    """Every side, asked for the same users as fast as it answers."""
    if plan.leaves_out("http", wrk.missing()):
        return []
    async with servers.started(plan, servers.every(plan)) as there:
        loads = await in_turns(plan, {name: (server, uniform) for name, server in there.items()})
        held = {name: server.resident() for name, server in there.items()}
    figures = [figure for name, each in loads.items() for figure in of_one(name, each)]
    ours = rates(loads[servers.OURS])
    figures += [
        replace(ratio("beside ours", rates(each), ours), of=name) for name, each in loads.items()
    ]
    figures += [Figure("memory", "MiB", (held[name],), of=name) for name in held]
    return figures + [
        figure for peer in _BESIDE if peer in loads for figure in _beside(loads, peer)
    ]


async def traffic(plan: Plan) -> list[Figure]:
    """Ours with the packet cache and without, under each kind of traffic; each its own process."""
    if plan.leaves_out("traffic", wrk.missing()):
        return []
    asked = {
        _of(name, mix): (side, mix) for name, side in servers.ours(plan).items() for mix in MIXES
    }
    sides = {what: side for what, (side, _) in asked.items()}
    async with servers.started(plan, sides) as there:
        loads = await in_turns(
            plan, {what: (there[what], MIXES[mix]) for what, (_, mix) in asked.items()}
        )
    figures = [figure for what, each in loads.items() for figure in of_one(what, each)]
    return figures + _packets(loads) + _refusals(loads)


async def in_turns(plan: Plan, asked: Mapping[str, tuple[Server, Mix]]) -> Loads:
    """The load that each server bore in each round."""

    async def bear(server: Server, mix: Mix) -> wrk.Load:
        return await wrk.load(plan, server, mix)

    return await take_turns(
        plan, "load", {name: partial(bear, *each) for name, each in asked.items()}
    )


def rates(loads: Sequence[wrk.Work]) -> list[float]:
    return [each.rate for each in loads]


def cpus(loads: Sequence[wrk.Work]) -> list[float]:
    return [each.cpu for each in loads]


def of_one(what: str, loads: Sequence[wrk.Work]) -> list[Figure]:
    """What a server did by itself."""
    return [
        Figure("answers", "/s", tuple(rates(loads)), of=what),
        Figure("CPU for 1,000", "ms", tuple(each.cpu * 1e6 for each in loads), of=what),
    ]


def _of(name: str, mix: str) -> str:
    return f"{name}: {mix}"


def _beside(loads: Loads, peer: str) -> list[Figure]:
    """What is promised of ours beside a peer, and the same of the processor's time alone."""
    us, least = _BESIDE[peer]
    what = f"answers of {us}, beside {peer}"
    ours, theirs = loads[us], loads[peer]
    return [
        ratio(f"{what}, of CPU alone", cpus(theirs), cpus(ours)),
        ratio(what, rates(ours), rates(theirs), Promise("least", least)),
    ]


def _packets(loads: Loads) -> list[Figure]:
    """What the packet cache gains, or loses."""
    return [
        ratio(
            f"answers with the packet cache, beside without it, {mix}",
            rates(loads[_of(servers.OURS, mix)]),
            rates(loads[_of(servers.WITHOUT_PACKETS, mix)]),
            _LOSS if mix == _NEVER else None,
        )
        for mix in MIXES
    ]


def _refusals(loads: Loads) -> list[Figure]:
    """What a refusal costs on the way that a 200 takes without the packet cache."""
    used = {mix: cpus(loads[_of(servers.WITHOUT_PACKETS, mix)]) for mix in MIXES}
    return [
        ratio(f"CPU of {mix}, beside 200, packet cache off", used[mix], used["uniform"], _REFUSAL)
        for mix in ("all 401", "all 422")
    ]

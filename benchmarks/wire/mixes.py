"""This service with and without the fast path, under each mix of traffic."""

from __future__ import annotations

from benchmarks.figures import Figure, Target, ratio
from benchmarks.plan import Plan
from benchmarks.wire import contenders, wrk
from benchmarks.wire.throughput import Loads, cpus, interleaved_loads, of_one, rates
from benchmarks.wire.traffic import MIXES

_LOSS = Target("least", 0.97)
_ERROR_COST = Target("most", 1)
_NEVER_REPEATING = "never repeating"


async def mixes(plan: Plan) -> list[Figure]:
    """Measure both, with a new process for each mix."""
    if plan.skip("mixes", wrk.missing()):
        return []
    pairs = {
        _label(name, mix): (side, mix)
        for name, side in contenders.ours(plan).items()
        for mix in MIXES
    }
    sides = {label: side for label, (side, _) in pairs.items()}
    async with contenders.run_all(plan, sides) as servers:
        loads = await interleaved_loads(
            plan, {label: (servers[label], MIXES[mix]) for label, (_, mix) in pairs.items()}
        )
    figures = [figure for label, each in loads.items() for figure in of_one(label, each)]
    return figures + _fast_path_gains(loads) + _error_costs(loads)


def _label(name: str, mix: str) -> str:
    return f"{name}: {mix}"


def _fast_path_gains(loads: Loads) -> list[Figure]:
    """Return the ratio of throughput with and without the fast path, by mix."""
    return [
        ratio(
            f"responses with / without the fast path, {mix}",
            rates(loads[_label(contenders.OURS, mix)]),
            rates(loads[_label(contenders.WITHOUT_FAST_PATH, mix)]),
            _LOSS if mix == _NEVER_REPEATING else None,
        )
        for mix in MIXES
    ]


def _error_costs(loads: Loads) -> list[Figure]:
    """Return the CPU time of error responses relative to 200, without the fast path."""
    used = {mix: cpus(loads[_label(contenders.WITHOUT_FAST_PATH, mix)]) for mix in MIXES}
    return [
        ratio(f"CPU of {mix} / all 200, fast path off", used[mix], used["uniform"], _ERROR_COST)
        for mix in ("all 401", "all 422")
    ]

"""Two workers compared with one, on all cores, together with the load generator."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.figures import Figure, Target, ratio
from benchmarks.plan import Plan
from benchmarks.wire import contenders, wrk
from benchmarks.wire.contenders import Contender
from benchmarks.wire.our_service import OurService, over_yaml
from benchmarks.wire.throughput import cpus, interleaved_loads, of_one, rates
from benchmarks.wire.traffic import uniform

_COUNTS = (1, 2)
_LEAST_GAIN = Target("least", 1.7)


@dataclass(frozen=True, slots=True)
class _OnAllCores:
    """A server on all cores, not pinned as in the other benchmarks."""

    service: OurService

    def __call__(self, port: int) -> Sequence[str]:
        cores = ",".join(map(str, range(os.cpu_count() or 1)))
        return ["taskset", "-c", cores, *self.service(port)]


async def workers(plan: Plan) -> list[Figure]:
    """Measure both without the fast path, so the generator needs only a small part of a core.

    The gain is computed from the CPU time per request, for all processes together. The generator
    shares the cores with them, so throughput would not show the gain.
    """
    if plan.skip("workers", wrk.missing()):
        return []
    one, two = (f"{count} of our processes" for count in _COUNTS)
    service = partial(OurService, plan.folder, over_yaml(plan), fast_path=False)
    sides = {
        name: Contender(_OnAllCores(service(workers=count)))
        for name, count in zip((one, two), _COUNTS, strict=True)
    }
    async with contenders.run_all(plan, sides) as servers:
        loads = await interleaved_loads(
            plan, {name: (server, uniform) for name, server in servers.items()}
        )
        memory = servers[two].unshared()
    twice = [2 * each for each in cpus(loads[one])]
    return [
        *(figure for name, each in loads.items() for figure in of_one(name, each)),
        ratio("gain of two workers, by CPU time", twice, cpus(loads[two]), _LEAST_GAIN),
        ratio("responses of two workers / one", rates(loads[two]), rates(loads[one])),
        Figure("memory of each process alone", "MiB", tuple(memory)),
    ]

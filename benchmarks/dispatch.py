"""Cost of the dispatch to a backend on a cache miss."""

from __future__ import annotations

from benchmarks import dataset
from benchmarks.directories import directory_over
from benchmarks.figures import Figure, Target, microseconds
from benchmarks.plan import Plan
from benchmarks.rounds import Timing, cpus, interleave, sequential
from tornado_idv.interfaces.shared import Purge

_TARGET = Target("most", 30)


async def missed_find(plan: Plan) -> list[Figure]:
    """`Directory.find` on a miss over a fixture, and the backend's own dictionary lookup."""
    fixture = plan.folder / "dispatch.yaml"
    dataset.write_fixture(fixture, plan.keys)
    keys = dataset.queries(plan.keys, plan.keys)
    async with directory_over("yaml", fixture) as (directory, guard):

        async def find() -> Timing:
            directory.cache.apply(Purge())
            return await sequential(directory.find, keys)

        async def own() -> Timing:
            return await sequential(guard.backend.find, keys)

        timings = await interleave(plan, "dispatches", {"find": find, "own": own})
    # Nothing waits for I/O, so CPU time is all there is.
    find_cpu, own_cpu = cpus(timings["find"]), cpus(timings["own"])
    added = [find - own for find, own in zip(find_cpu, own_cpu, strict=True)]
    return [
        microseconds("Directory.find, missed", find_cpu),
        microseconds("YAML Backend.find", own_cpu),
        microseconds("dispatch on top of Backend.find", added, _TARGET),
    ]

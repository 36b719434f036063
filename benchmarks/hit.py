"""Cost of a cached lookup."""

from __future__ import annotations

from cachetools import TLRUCache

from benchmarks import dataset
from benchmarks.directories import directory_over
from benchmarks.figures import Figure, Target, microseconds, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import Stopwatch, Timing, cpus, interleave, sequential
from tornado_idv import Answer, Query

_PASSES = 20
_TARGET = Target("most", 3)


async def cached_find(plan: Plan) -> list[Figure]:
    """`Directory.find` on a hit, compared with ``get`` of a bare `TLRUCache` with the same keys."""
    fixture = plan.folder / "hit.yaml"
    dataset.write_fixture(fixture, plan.keys)
    keys = dataset.queries(plan.keys, plan.keys)[: plan.keys]
    async with directory_over("yaml", fixture) as (directory, _):
        cache = TLRUCache[Query, Answer](len(keys), lambda _key, _value, now: now + 300)
        for key in keys:
            cache[key] = await directory.find(key)

        async def find() -> Timing:
            return await sequential(directory.find, keys, _PASSES)

        async def bare() -> Timing:
            watch = Stopwatch(len(keys) * _PASSES)
            for _ in range(_PASSES):
                for key in keys:
                    cache.get(key)
            return watch.timing()

        timings = await interleave(plan, "cached lookups", {"find": find, "bare": bare})
    # Without I/O, CPU time is the only cost.
    find_cpu, bare_cpu = cpus(timings["find"]), cpus(timings["bare"])
    return [
        microseconds("Directory.find, cached", find_cpu),
        microseconds("TLRUCache.get", bare_cpu),
        ratio("cached find / TLRUCache.get", find_cpu, bare_cpu, _TARGET),
    ]

"""What a lookup costs that is answered from the cache."""

from __future__ import annotations

from cachetools import TLRUCache

from benchmarks import people
from benchmarks.directories import directory_over
from benchmarks.figures import Figure, Promise, micros, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import Stopwatch, Taken, cpus, in_turn, take_turns
from tornado_idv import Answer, Query

_PASSES = 20
_PROMISE = Promise("most", 3)


async def cached_find(plan: Plan) -> list[Figure]:
    """A cached `Directory.find` beside ``get`` of a bare `TLRUCache` with the same keys."""
    fixture = plan.folder / "hit.yaml"
    people.write_fixture(fixture, plan.keys)
    keys = people.queries(plan.keys, plan.keys)[: plan.keys]
    async with directory_over("yaml", fixture) as (directory, _):
        cache = TLRUCache[Query, Answer](len(keys), lambda _key, _value, now: now + 300)
        for key in keys:
            cache[key] = await directory.find(key)

        async def find() -> Taken:
            return await in_turn(directory.find, keys, _PASSES)

        async def bare() -> Taken:
            watch = Stopwatch(len(keys) * _PASSES)
            for _ in range(_PASSES):
                for key in keys:
                    cache.get(key)
            return watch.taken()

        taken = await take_turns(plan, "cached lookups", {"find": find, "bare": bare})
    # Nothing is waited for, so the processor's time is all there is.
    find_cpu, bare_cpu = cpus(taken["find"]), cpus(taken["bare"])
    return [
        micros("Directory.find, cached", find_cpu),
        micros("TLRUCache.get", bare_cpu),
        ratio("cached find / TLRUCache.get", find_cpu, bare_cpu, _PROMISE),
    ]

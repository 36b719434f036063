"""Cost of the dispatch to a backend on a cache miss, and of the hook in it."""

from __future__ import annotations

import asyncio

import pluggy

from benchmarks import dataset
from benchmarks.directories import directory_over
from benchmarks.figures import Figure, Target, microseconds
from benchmarks.plan import Plan
from benchmarks.rounds import Timing, cpus, interleave, sequential
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup.guard import Guard
from tornado_idv.model import Answer, Query
from tornado_idv.registry import plugin_manager

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

        hook, deadline = _hook_of(guard), asyncio.get_running_loop().time() + 3600

        async def by_hook(query: Query) -> Answer | None:
            ((_, call),) = hook(query=query, deadline=deadline)
            return await call

        async def guarded() -> Timing:
            return await sequential(lambda query: guard.find(query, deadline), keys)

        async def hooked() -> Timing:
            return await sequential(by_hook, keys)

        measured = {"find": find, "own": own, "guarded": guarded, "hooked": hooked}
        timings = await interleave(plan, "dispatches", measured)
    # Without I/O, CPU time is the only cost.
    find_cpu, own_cpu, guard_cpu, hook_cpu = (cpus(timings[each]) for each in measured)
    of_hook = [hook - guard for hook, guard in zip(hook_cpu, guard_cpu, strict=True)]
    added = [find - own for find, own in zip(find_cpu, own_cpu, strict=True)]
    return [
        microseconds("Directory.find, missed", find_cpu),
        microseconds("YAML Backend.find", own_cpu),
        microseconds("the hook idv_identify, on top of Guard.find", of_hook),
        microseconds("dispatch on top of Backend.find", added, _TARGET),
    ]


def _hook_of(guard: Guard) -> pluggy.HookCaller:
    """Return the hook ``idv_identify`` of a manager with the loaded plugins and this guard."""
    manager = plugin_manager()
    manager.register(guard)
    return manager.hook.idv_identify

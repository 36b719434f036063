"""What the way to a backend costs when the cache does not know the answer."""

from __future__ import annotations

from benchmarks import people
from benchmarks.directories import directory_over
from benchmarks.figures import Figure, Promise, micros
from benchmarks.plan import Plan
from benchmarks.rounds import Taken, cpus, in_turn, take_turns

_PROMISE = Promise("most", 30)


async def missed_find(plan: Plan) -> list[Figure]:
    """A missed `Directory.find` over a fixture, and the backend's look into its dictionary."""
    fixture = plan.folder / "dispatch.yaml"
    people.write_fixture(fixture, plan.keys)
    keys = people.queries(plan.keys, plan.keys)
    async with directory_over("yaml", fixture) as (directory, guard):

        async def find() -> Taken:
            directory.cache.purge()
            return await in_turn(directory.find, keys)

        async def own() -> Taken:
            return await in_turn(guard.backend.find, keys)

        taken = await take_turns(plan, "dispatches", {"find": find, "own": own})
    # Nothing is waited for, so the processor's time is all there is.
    find_cpu, own_cpu = cpus(taken["find"]), cpus(taken["own"])
    added = [find - own for find, own in zip(find_cpu, own_cpu, strict=True)]
    return [
        micros("Directory.find, missed", find_cpu),
        micros("the YAML backend's own look-up", own_cpu),
        micros("dispatch on top of the look-up", added, _PROMISE),
    ]

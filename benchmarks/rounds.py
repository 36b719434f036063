"""Sides that take turns: a warm-up, then rounds, with the garbage collector settled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from benchmarks.plan import Plan
from tornado_idv.server.run import settle_memory


class Taken(NamedTuple):
    """Seconds that one operation took: by the clock on the wall, and of the processor.

    Other work on the machine lengthens the first and hardly the second, which leaves out
    what is waited for.
    """

    wall: float
    cpu: float


Side = Callable[[], Awaitable[Taken]]
"""Runs one side once."""

ItemT = TypeVar("ItemT")
TakenT = TypeVar("TakenT")


async def take_turns(
    plan: Plan, what: str, sides: Mapping[str, Callable[[], Awaitable[TakenT]]]
) -> dict[str, list[TakenT]]:
    """What each side took in each round; every other round begins at the other end."""
    names = list(sides)
    taken: dict[str, list[TakenT]] = {name: [] for name in names}
    with plan.step(what, len(names) * (plan.rounds + 1)) as advance:
        for name in names:
            await sides[name]()
            advance()
        for number in range(plan.rounds):
            for name in reversed(names) if number % 2 else names:
                settle_memory()
                taken[name].append(await sides[name]())
                advance()
    return taken


class Stopwatch:
    """Runs from when it is made; ``operations`` share the time."""

    def __init__(self, operations: int) -> None:
        self._operations = operations
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def taken(self) -> Taken:
        wall = time.perf_counter() - self._wall
        cpu = time.process_time() - self._cpu
        return Taken(wall / self._operations, cpu / self._operations)


async def in_turn(
    call: Callable[[ItemT], Coroutine[Any, Any, object]], items: Sequence[ItemT], passes: int = 1
) -> Taken:
    """What a call takes when one caller makes all of them."""
    watch = Stopwatch(len(items) * passes)
    for _ in range(passes):
        for item in items:
            await call(item)
    return watch.taken()


async def at_once(
    call: Callable[[ItemT], Coroutine[Any, Any, object]], items: Sequence[ItemT], callers: int
) -> Taken:
    """What each call takes of the time in which this many callers share all of them."""

    async def make(share: Iterable[ItemT]) -> None:
        for item in share:
            await call(item)

    watch = Stopwatch(len(items))
    async with asyncio.TaskGroup() as group:
        for number in range(callers):
            group.create_task(make(items[number::callers]))
    return watch.taken()


def walls(taken: Iterable[Taken]) -> list[float]:
    return [each.wall for each in taken]


def cpus(taken: Iterable[Taken]) -> list[float]:
    return [each.cpu for each in taken]

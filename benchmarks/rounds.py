"""Interleaved rounds: a warm-up, then measurements, with the garbage collector tuned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from benchmarks.plan import Plan
from tornado_idv.service.run import tune_gc


class Timing(NamedTuple):
    """Seconds per operation: wall-clock time and CPU time.

    Other load on the machine increases wall-clock time. It hardly increases CPU time, because CPU
    time excludes waiting.
    """

    wall: float
    cpu: float


Side = Callable[[], Awaitable[Timing]]
"""Runs one side once."""

ItemT = TypeVar("ItemT")
TimingT = TypeVar("TimingT")


async def interleave(
    plan: Plan, what: str, sides: Mapping[str, Callable[[], Awaitable[TimingT]]]
) -> dict[str, list[TimingT]]:
    """Return the timings of each side. Every other round runs the sides in reverse order."""
    names = list(sides)
    timings: dict[str, list[TimingT]] = {name: [] for name in names}
    with plan.step(what, len(names) * (plan.rounds + plan.warm_up)) as advance:
        for name in names if plan.warm_up else ():
            await sides[name]()
            advance()
        for number in range(plan.rounds):
            for name in reversed(names) if number % 2 else names:
                tune_gc()
                timings[name].append(await sides[name]())
                advance()
    return timings


class Stopwatch:
    """Starts at its creation. The time is divided by ``operations``."""

    def __init__(self, operations: int) -> None:
        self._operations = operations
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def timing(self) -> Timing:
        wall = time.perf_counter() - self._wall
        cpu = time.process_time() - self._cpu
        return Timing(wall / self._operations, cpu / self._operations)


async def sequential(
    call: Callable[[ItemT], Coroutine[Any, Any, object]], items: Sequence[ItemT], passes: int = 1
) -> Timing:
    """Return the time per call, with one task for all calls."""
    watch = Stopwatch(len(items) * passes)
    for _ in range(passes):
        for item in items:
            await call(item)
    return watch.timing()


async def concurrent(
    call: Callable[[ItemT], Coroutine[Any, Any, object]], items: Sequence[ItemT], tasks: int
) -> Timing:
    """Return the time per call, with ``tasks`` concurrent tasks."""

    async def make(share: Iterable[ItemT]) -> None:
        for item in share:
            await call(item)

    watch = Stopwatch(len(items))
    async with asyncio.TaskGroup() as group:
        for number in range(tasks):
            group.create_task(make(items[number::tasks]))
    return watch.timing()


def walls(timings: Iterable[Timing]) -> list[float]:
    return [each.wall for each in timings]


def cpus(timings: Iterable[Timing]) -> list[float]:
    return [each.cpu for each in timings]

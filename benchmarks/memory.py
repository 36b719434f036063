"""Resident memory after lookups in SQLite, by size of the table."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import uvloop

from benchmarks import dataset
from benchmarks.directories import directory_over
from benchmarks.figures import Figure, Target, ratio
from benchmarks.plan import Plan

_MEBIBYTE = 1024**2
_TARGET = Target("most", 1.1)


async def resident_memory(plan: Plan) -> list[Figure]:
    """Measure the same number of lookups in each table, each in a new process."""
    held: dict[int, list[float]] = {}
    grown: dict[int, list[float]] = {}
    tables = {users: dataset.table(plan, users) for users in plan.users}
    with plan.step("memory", plan.rounds * len(tables)) as advance:
        for _ in range(plan.rounds):
            for users, path in tables.items():
                before, after = await _in_new_process(path, plan.keys, users)
                held.setdefault(users, []).append(after)
                grown.setdefault(users, []).append(after - before)
                advance()
    return [*_sizes(held, grown), *_ratios(held)]


def _sizes(held: dict[int, list[float]], grown: dict[int, list[float]]) -> list[Figure]:
    return [
        Figure(f"{what}, {users:,} users", "MiB", tuple(sizes[users]))
        for users in held
        for what, sizes in (("resident after lookups", held), ("growth since the start", grown))
    ]


def _ratios(held: dict[int, list[float]]) -> list[Figure]:
    (first, least), *others = held.items()
    return [
        ratio(f"resident, {users:,} users / {first:,} users", sizes, least, _TARGET)
        for users, sizes in others
    ]


async def _in_new_process(path: Path, keys: int, users: int) -> tuple[float, float]:
    """Measure in a spawned process. A forked one would start with the memory of this process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, _measure, path, keys, users)


def _measure(path: Path, keys: int, users: int) -> tuple[float, float]:
    return uvloop.run(_look_up(path, keys, users))


async def _look_up(path: Path, keys: int, users: int) -> tuple[float, float]:
    """Return the memory in MiB before opening the file, and after the lookups."""
    before, queries = _resident(), dataset.queries(keys, users)
    async with directory_over("sqlite", path) as (directory, _):
        for query in queries:
            await directory.find(query)
        return before, _resident()


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / _MEBIBYTE

"""Lookups in SQLite without cache hits, compared with aiosqlite alone, by size of the table.

Three sides of this service show the distribution of time: the whole directory, including encoding
and caching; the backend behind its guard; and the backend alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import aiosqlite

from benchmarks import dataset
from benchmarks.directories import directory_over
from benchmarks.figures import Figure, Target, microseconds, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import Side, Timing, concurrent, interleave, walls
from tornado_idv import Backend, BackendOptions, Query
from tornado_idv.interfaces.shared import Purge

Call = tuple[str, tuple[Any, ...]]
"""The SQL of a lookup and its parameters."""

_TASKS = 32
_OURS = ("Directory.find", "the guard", "Backend.find")
_WITH_TARGET = ("Directory.find", "the guard")
_BARE = "execute_fetchall"
_THROUGHPUT = Target("least", 0.7)
_FLAT = Target("least", 0.8)


async def uncached_find(plan: Plan) -> list[Figure]:
    """Measure concurrent lookups, compared with ``execute_fetchall`` of the same SQL."""
    sides: dict[str, Side] = {}
    async with AsyncExitStack() as stack:
        for users in plan.users:
            path, keys = dataset.table(plan, users), dataset.queries(plan.keys, users)
            of_table = await stack.enter_async_context(_sides(path, keys))
            sides |= {_named(what, users): side for what, side in of_table.items()}
        timings = await interleave(plan, "lookups in SQLite", sides)
    figures = [figure for users in plan.users for figure in _beside(timings, users)]
    first, *others = plan.users
    return figures + [
        _flat(timings, what, first, users) for users in others for what in (_OURS[0], _BARE)
    ]


@asynccontextmanager
async def _sides(path: Path, keys: Sequence[Query]) -> AsyncIterator[dict[str, Side]]:
    async with (
        directory_over("sqlite", path) as (directory, guard),
        aiosqlite.connect(f"{path.as_uri()}?mode=ro", uri=True) as connection,
    ):
        calls = await _calls(guard.backend, keys)

        async def call_guard(query: Query) -> object:
            return await guard.find(query, asyncio.get_running_loop().time() + 2)

        async def fetch(call: Call) -> object:
            return await connection.execute_fetchall(*call)

        async def find() -> Timing:
            directory.cache.apply(Purge())
            return await concurrent(directory.find, keys, _TASKS)

        yield {
            "Directory.find": find,
            "the guard": lambda: concurrent(call_guard, keys, _TASKS),
            "Backend.find": lambda: concurrent(guard.backend.find, keys, _TASKS),
            "execute_fetchall": lambda: concurrent(fetch, calls, _TASKS),
        }


async def _calls(backend: Backend[BackendOptions], keys: Sequence[Query]) -> list[Call]:
    """Return the SQL of the backend for each query."""
    with _recorded() as calls:
        for key in keys:
            await backend.find(key)
    if len(calls) != len(keys):
        raise RuntimeError("a lookup is no longer one call of execute_fetchall")
    return calls


@contextmanager
def _recorded() -> Iterator[list[Call]]:
    """Record calls with parameters. Calls without are the backend's checks of its file."""
    calls: list[Call] = []
    fetch = aiosqlite.Connection.execute_fetchall

    def recording(
        connection: aiosqlite.Connection, sql: str, parameters: Sequence[Any] = ()
    ) -> Awaitable[object]:
        if len(parameters) > 0:
            calls.append((sql, tuple(parameters)))
        return fetch(connection, sql, parameters)

    with mock.patch.object(aiosqlite.Connection, "execute_fetchall", recording):
        yield calls


def _named(what: str, users: int) -> str:
    return f"{what}, {users:,} users"


def _beside(timings: Mapping[str, list[Timing]], users: int) -> list[Figure]:
    names = [_named(what, users) for what in (*_OURS, _BARE)]
    bare = timings[names[-1]]
    return [microseconds(name, walls(timings[name])) for name in names] + [
        ratio(
            f"throughput of {_named(what, users)}, beside {_BARE}",
            walls(bare),
            walls(timings[_named(what, users)]),
            _THROUGHPUT if what in _WITH_TARGET else None,
        )
        for what in _OURS
    ]


def _flat(timings: Mapping[str, list[Timing]], what: str, first: int, users: int) -> Figure:
    """Return the ratio of throughput between a larger and the smallest table."""
    small, large = (walls(timings[_named(what, each)]) for each in (first, users))
    target = None if what == _BARE else _FLAT
    return ratio(f"throughput of {_named(what, users)}, beside {first:,}", small, large, target)

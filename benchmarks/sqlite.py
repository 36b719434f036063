"""Lookups in SQLite that no cache answers, beside the library on its own, by size of the table.

Three sides of ours show where the time goes: the whole directory, which also encodes and
remembers each answer, the backend behind its guard, and the backend alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import aiosqlite

from benchmarks import people
from benchmarks.directories import directory_over
from benchmarks.figures import Figure, Promise, micros, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import Side, Taken, at_once, take_turns, walls
from tornado_idv import Backend, BackendOptions, Query

Call = tuple[str, tuple[Any, ...]]
"""The SQL that a lookup asks, with its parameters."""

_CALLERS = 32
_OURS = ("Directory.find", "the guard", "Backend.find")
_PROMISED = ("Directory.find", "the guard")
_BARE = "execute_fetchall"
_THROUGHPUT = Promise("least", 0.7)
_FLAT = Promise("least", 0.8)


async def uncached_find(plan: Plan) -> list[Figure]:
    """Lookups from many callers, each beside ``execute_fetchall`` with the same SQL."""
    sides: dict[str, Side] = {}
    async with AsyncExitStack() as stack:
        for users in plan.users:
            path, keys = people.table(plan, users), people.queries(plan.keys, users)
            offered = await stack.enter_async_context(_sides(path, keys))
            sides |= {_named(what, users): side for what, side in offered.items()}
        taken = await take_turns(plan, "lookups in SQLite", sides)
    figures = [figure for users in plan.users for figure in _beside(taken, users)]
    first, *others = plan.users
    return figures + [
        _flat(taken, what, first, users) for users in others for what in (_OURS[0], _BARE)
    ]


@asynccontextmanager
async def _sides(path: Path, keys: Sequence[Query]) -> AsyncIterator[dict[str, Side]]:
    async with (
        directory_over("sqlite", path) as (directory, guard),
        aiosqlite.connect(f"{path.as_uri()}?mode=ro", uri=True) as connection,
    ):
        calls = await _calls(guard.backend, keys)

        async def ask_guard(query: Query) -> object:
            return await guard.find(query, asyncio.get_running_loop().time() + 2)

        async def fetch(call: Call) -> object:
            return await connection.execute_fetchall(*call)

        async def find() -> Taken:
            directory.cache.purge()
            return await at_once(directory.find, keys, _CALLERS)

        yield {
            "Directory.find": find,
            "the guard": lambda: at_once(ask_guard, keys, _CALLERS),
            "Backend.find": lambda: at_once(guard.backend.find, keys, _CALLERS),
            "execute_fetchall": lambda: at_once(fetch, calls, _CALLERS),
        }


async def _calls(backend: Backend[BackendOptions], keys: Sequence[Query]) -> list[Call]:
    """What the backend asks the library for, query by query."""
    with _recorded() as calls:
        for key in keys:
            await backend.find(key)
    if len(calls) != len(keys):
        raise RuntimeError("a lookup is no longer one call of execute_fetchall")
    return calls


@contextmanager
def _recorded() -> Iterator[list[Call]]:
    """Notes the calls with parameters; those without are the backend's looks at its file."""
    calls: list[Call] = []
    fetch = aiosqlite.Connection.execute_fetchall

    def noting(
        connection: aiosqlite.Connection, sql: str, parameters: Sequence[Any] = ()
    ) -> Awaitable[object]:
        if len(parameters) > 0:
            calls.append((sql, tuple(parameters)))
        return fetch(connection, sql, parameters)

    with mock.patch.object(aiosqlite.Connection, "execute_fetchall", noting):
        yield calls


def _named(what: str, users: int) -> str:
    return f"{what}, {users:,} users"


def _beside(taken: Mapping[str, list[Taken]], users: int) -> list[Figure]:
    names = [_named(what, users) for what in (*_OURS, _BARE)]
    bare = taken[names[-1]]
    return [micros(name, walls(taken[name])) for name in names] + [
        ratio(
            f"throughput of {_named(what, users)}, beside {_BARE}",
            walls(bare),
            walls(taken[_named(what, users)]),
            _THROUGHPUT if what in _PROMISED else None,
        )
        for what in _OURS
    ]


def _flat(taken: Mapping[str, list[Taken]], what: str, first: int, users: int) -> Figure:
    """How much of the throughput is left over a table this much larger."""
    small, large = (walls(taken[_named(what, each)]) for each in (first, users))
    promise = None if what == _BARE else _FLAT
    return ratio(f"throughput of {_named(what, users)}, beside {first:,}", small, large, promise)

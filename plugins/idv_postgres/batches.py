"""Lookups that start in the same iteration of the event loop share one query.

To send a query and to read its result takes both sides longer than to find a row by its index, so
under load a query for many users takes a fraction of the CPU time of one for each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from tornado_idv import LookupFailed

Rows: TypeAlias = Sequence[Sequence[Any]]
Fetch: TypeAlias = Callable[[str, str | list[str]], Awaitable[Rows]]
"""Runs a statement with its parameter; raises `LookupFailed`, and `BatchFailed`."""

_MAX_SIZE = 32
"""Lookups in one batch: as many wait for a slow row, or fail with a lost connection."""
_Outcome: TypeAlias = Rows | LookupFailed | None
"""The rows of a value; ``None`` if its lookup is to be repeated alone."""


class BatchFailed(Exception):
    """A query for several values failed, maybe due to one of them."""


class BatchTimedOut(BatchFailed):
    """A query for several values took too long."""


class _Batch:
    """Values that are looked up together, and who waits for each."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.waiters: list[asyncio.Future[_Outcome]] = []
        self.task: asyncio.Task[None] | None = None

    def add(self, value: str) -> asyncio.Future[_Outcome]:
        waiter: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        self.values.append(value)
        self.waiters.append(waiter)
        return waiter

    def drop_cancelled(self) -> None:
        """Remove the values whose lookups are cancelled."""
        kept = [each for each in zip(self.values, self.waiters, strict=True) if not each[1].done()]
        self.values = [value for value, _ in kept]
        self.waiters = [waiter for _, waiter in kept]

    def on_cancelled(self) -> None:
        """Cancel the query if it was for cancelled lookups alone."""
        if self.task is not None and all(each.done() for each in self.waiters):
            self.task.cancel()

    def resolve(self, outcomes: Sequence[_Outcome]) -> None:
        for waiter, outcome in zip(self.waiters, outcomes, strict=True):
            if not waiter.done():
                waiter.set_result(outcome)


class Batches:
    """Lookups by one statement, in ``limit`` queries at once; further ones wait and form batches.

    ``sql`` looks up the value ``$1``. ``batch_sql`` looks up an array of them; its rows begin with
    the position of their value in the array, from 1. A lookup while no other runs is not delayed.
    After a batch that took too long, each lookup is a query of its own for a while.
    """

    pause: ClassVar[float] = 5.0
    """Seconds without batches after one took too long: a slow row is likely to be looked up again,
    and each time the others of its batch would wait until it is stopped."""

    def __init__(self, fetch: Fetch, sql: str, batch_sql: str, limit: int) -> None:
        self._fetch_rows = fetch
        self._sql = sql
        self._batch_sql = batch_sql
        self._limit = limit
        self._running = 0
        self._paused_until = 0.0
        self._waiting: deque[_Batch] = deque()

    async def fetch(self, value: str) -> Rows:
        """Return the rows of a value; raises `LookupFailed`."""
        if not self._running and not self._waiting:
            return await self._fetch_alone(value)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._start)
        if not self._waiting or len(self._waiting[-1].values) == _MAX_SIZE:
            self._waiting.append(_Batch())
        batch = self._waiting[-1]
        waiter = batch.add(value)
        try:
            outcome = await waiter
        except asyncio.CancelledError:
            batch.on_cancelled()
            raise
        if outcome is None:
            return await self._fetch_alone(value)
        if isinstance(outcome, LookupFailed):
            raise outcome
        return outcome

    async def _fetch_alone(self, value: str) -> Rows:
        self._running += 1
        try:
            return await self._fetch_rows(self._sql, value)
        finally:
            self._on_query_end()

    def _start(self) -> None:
        """Start the batches that wait, as far as the limit allows."""
        is_paused = asyncio.get_running_loop().time() < self._paused_until
        while self._waiting and self._running < self._limit:
            batch = self._waiting.popleft()
            batch.drop_cancelled()
            if len(batch.values) > 1 and not is_paused:
                self._running += 1
                batch.task = asyncio.get_running_loop().create_task(self._run(batch))
            else:
                batch.resolve([None] * len(batch.values))

    async def _run(self, batch: _Batch) -> None:
        try:
            rows = await self._fetch_rows(self._batch_sql, batch.values)
        except BatchFailed as error:
            if isinstance(error, BatchTimedOut):
                self._paused_until = asyncio.get_running_loop().time() + self.pause
            batch.resolve([None] * len(batch.values))
        except LookupFailed as error:
            batch.resolve([error.copy() for _ in batch.values])
        else:
            found: list[list[Sequence[Any]]] = [[] for _ in batch.values]
            for row in rows:
                found[row[0] - 1].append(row[1:])
            batch.resolve(found)
        finally:
            self._on_query_end()

    def _on_query_end(self) -> None:
        self._running -= 1
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._start)

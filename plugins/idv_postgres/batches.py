"""Batches: lookups that start in the same iteration of the event loop share one query.

Client and server need more CPU time to exchange a query and its result than to find a row by its
index. Under load, a query for many users takes a fraction of the time of single queries.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from idv_postgres.lookups import Result
from tornado_idv import LookupFailed

Fetch: TypeAlias = Callable[[str, str | list[str]], Awaitable[Result]]
"""A function that runs a statement with one parameter. Raises `LookupFailed` or `BatchFailed`."""

_MAX_SIZE = 32
"""Maximum number of lookups in a batch. A slow row or a lost connection affects all of them."""
_Waiter: TypeAlias = "tuple[str, asyncio.Future[Result | LookupFailed | None]]"
"""A value, and a future for its result. For the result ``None``, look the value up alone."""


class BatchFailed(Exception):
    """Raised if a query for several values fails or times out. A single value may be the cause."""


class Batches:
    """The lookups of one kind. They run in at most ``limit`` concurrent queries.

    ``sql`` looks up the value ``$1``. ``batch_sql`` looks up an array of values. Its rows begin
    with the position of their value in the array, from 1. If no lookup runs or waits, a new lookup
    runs immediately. Otherwise it waits, and the waiting lookups share the next query.
    """

    pause: ClassVar[float] = 5.0
    """Seconds without batches after a failed batch. A slow or bad row is likely to be looked up
    again, and would delay all lookups of its batch each time."""

    def __init__(self, fetch: Fetch, sql: str, batch_sql: str, limit: int) -> None:
        self._fetch_rows, self._limit = fetch, limit
        self._sql, self._batch_sql = sql, batch_sql
        self._running = 0
        self._batches: dict[asyncio.Task[None], list[_Waiter]] = {}
        self._waiting: list[_Waiter] = []
        self._paused_until = 0.0

    async def fetch(self, value: str) -> Result:
        """Return the result for a value. Raises `LookupFailed`."""
        if not self._running and not self._waiting:
            return await self._fetch_alone(value)
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._start)
        waiter: _Waiter = value, loop.create_future()
        self._waiting.append(waiter)
        try:
            outcome = await waiter[1]
        except asyncio.CancelledError:
            for task, batch in self._batches.items():
                # Cancel the batch of this lookup, unless another lookup of the batch still waits.
                if waiter in batch and all(result.done() for _, result in batch):
                    task.cancel()
            raise
        if isinstance(outcome, LookupFailed):
            raise outcome
        return await self._fetch_alone(value) if outcome is None else outcome

    async def _fetch_alone(self, value: str) -> Result:
        self._running += 1
        try:
            return await self._fetch_rows(self._sql, value)
        finally:
            self._on_query_end()

    def _start(self) -> None:
        """Start the waiting lookups, up to the limit of concurrent queries."""
        loop = asyncio.get_running_loop()
        self._waiting = [each for each in self._waiting if not each[1].done()]  # done: cancelled
        while self._waiting and self._running < self._limit:
            batch, self._waiting = self._waiting[:_MAX_SIZE], self._waiting[_MAX_SIZE:]
            if len(batch) > 1 and loop.time() >= self._paused_until:
                self._running += 1
                task = loop.create_task(self._run(batch))
                self._batches[task] = batch
                task.add_done_callback(self._batches.pop)
            else:
                _resolve(batch, [None] * len(batch))

    async def _run(self, batch: list[_Waiter]) -> None:
        outcomes: Sequence[Result | LookupFailed | None] = [None] * len(batch)
        try:
            result = await self._fetch_rows(self._batch_sql, [value for value, _ in batch])
            found: list[list[Sequence[Any]]] = [[] for _ in batch]
            for row in result.rows:
                found[row[0] - 1].append(row[1:])
            # This is set last: after an error, no lookup may get an empty result.
            outcomes = [result._replace(rows=rows) for rows in found]
        except BatchFailed:
            self._paused_until = asyncio.get_running_loop().time() + self.pause
        except LookupFailed as error:
            outcomes = [error.copy() for _ in batch]
        finally:
            # This comes first: the next lookups of these callers can join the next batch.
            _resolve(batch, outcomes)
            self._on_query_end()

    def _on_query_end(self) -> None:
        self._running -= 1
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._start)


def _resolve(batch: Sequence[_Waiter], outcomes: Sequence[Result | LookupFailed | None]) -> None:
    for (_, result), outcome in zip(batch, outcomes, strict=True):
        if not result.done():
            result.set_result(outcome)

"""Lookups in the backends. Concurrent callers with the same query share one running lookup.

A lookup runs in a separate task, so it continues after its first caller has left. Each caller has a
separate future.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from tornado_idv.errors import LookupFailed, Unavailable
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.deadlines import DeadlineQueue
from tornado_idv.model import Answer, Query

_MAX_REFRESHES = 4
"""Maximum concurrent refreshes. The number is small, to leave permits for lookups of clients."""
_MAX_WAITING_REFRESHES = 1000
LookUp = Callable[[Query, float], Coroutine[Any, Any, Answer]]
"""Looks up a query. A shared cache returns only answers with more than the given TTL (in s)."""


@dataclass(slots=True, eq=False)
class _Call:
    """A running lookup and its callers.

    ``min_ttl`` is the TTL that a refresh passes to `LookUp`. For other lookups it is ``None``.
    """

    query: Query
    min_ttl: float | None
    task: asyncio.Task[None] = field(init=False)
    waiters: list[asyncio.Future[Answer]] = field(default_factory=list)


class SingleFlight:
    """Starts lookups, and shares each of them between concurrent callers with the same query.

    The outcome of a lookup is cached before its callers get it. After ``timeout`` seconds, a lookup
    fails as `Unavailable`. If the cache has a stale answer, callers get this answer in place of a
    failure. ``on_outcome`` is called once per lookup, after its callers have their answers.
    """

    def __init__(
        self,
        cache: AnswerCache,
        look_up: LookUp,
        timeout: float,
        on_outcome: Callable[[Query, Answer | LookupFailed], object],
    ) -> None:
        self._cache = cache
        self._look_up = look_up
        self._timeout = timeout
        self._on_outcome = on_outcome
        self._calls: dict[str, _Call] = cache.calls
        self._refreshes: set[asyncio.Task[None]] = set()
        self._refresh_slots = asyncio.Semaphore(_MAX_REFRESHES)
        self._deadlines = DeadlineQueue(self._time_out)

    def add(self, query: Query) -> asyncio.Future[Answer]:
        """Return a future for the answer. Join the running lookup of the query, or start one.

        If a recent failure is memoized, no lookup is started: the future has the failure, or a
        stale answer. After a timeout, the next caller starts a new lookup.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if (failure := self._cache.get_failure(query)) is not None:
            self._settle(future, query, failure)
            return future
        call = self._calls.get(query.text) or self._start(query)
        call.waiters.append(future)
        return future

    def start_refresh(self, query: Query) -> None:
        """Renew a cached answer in the background, unless too many refreshes are waiting."""
        if len(self._refreshes) < _MAX_WAITING_REFRESHES:
            task = asyncio.get_running_loop().create_task(self.refresh(query))
            self._refreshes.add(task)
            task.add_done_callback(self._refreshes.discard)

    async def refresh(self, query: Query) -> None:
        """Renew a cached answer, and wait for the end. If its lookup already runs, do nothing."""
        async with self._refresh_slots:
            if query.text not in self._calls:
                limits = self._cache.limits
                # A shared answer with less time left would be due for a refresh, too.
                call = self._start(query, limits.ttl * (1 - limits.refresh_ahead))
                await asyncio.wait([call.task], timeout=self._timeout)

    def stop_refreshing(self) -> None:
        """Cancel the background refreshes that have not started a lookup yet."""
        for task in self._refreshes:
            task.cancel()

    async def join(self) -> None:
        """Wait for the end of all running lookups, even of those that new callers do not join."""
        while self._cache.running:
            await asyncio.wait(self._cache.running)

    def _start(self, query: Query, min_ttl: float | None = None) -> _Call:
        call = self._calls[query.text] = _Call(query, min_ttl)
        loop = asyncio.get_running_loop()
        call.task = loop.create_task(self._run(call))
        self._cache.running[call.task] = query.text
        call.task.add_done_callback(self._cache.running.pop)
        self._deadlines.add(call, loop.time() + self._timeout)
        return call

    async def _run(self, call: _Call) -> None:
        try:
            self._resolve(call, await self._look_up(call.query, call.min_ttl or 0.0))
        except Exception as error:  # noqa: BLE001 - raised to each waiter
            self._resolve(call, error)
        except asyncio.CancelledError:
            for waiter in call.waiters:
                waiter.cancel()
            raise
        finally:
            self._detach(call)

    def _resolve(self, call: _Call, outcome: Answer | Exception) -> None:
        query = call.query
        if self._calls.get(query.text) is call:
            if isinstance(outcome, Answer):
                self._cache.store(query, outcome)  # raises if a plugin's TTL is not a number
            elif isinstance(outcome, LookupFailed) and outcome.memoized:
                self._cache.store_failure(query, outcome)
        elif isinstance(outcome, Answer) and not outcome.found and call.waiters:
            # Clients get this "not found", so no later client may get the user of another call.
            self._cache.drop_user(query)
        if call.min_ttl is not None:
            self._cache.counters.refreshes["ok" if isinstance(outcome, Answer) else "failed"] += 1
        for i, waiter in enumerate(call.waiters):
            # The first caller has started the lookup, unless it is a refresh.
            if isinstance(outcome, Answer) and (i > 0 or call.min_ttl is not None):
                self._settle(waiter, query, replace(outcome, coalesced=True))
            else:
                self._settle(waiter, query, outcome)
        self._deadlines.discard(call)  # last: after an error above, the timeout still ends waits
        if isinstance(outcome, Answer | LookupFailed):
            self._on_outcome(query, outcome)

    def _time_out(self, call: _Call) -> None:
        # The call may hang: later callers do not join it.
        self._detach(call)
        while call.waiters:
            self._settle(call.waiters.pop(), call.query, TimeoutError())

    def _settle(
        self, future: asyncio.Future[Answer], query: Query, outcome: Answer | Exception
    ) -> None:
        if future.done():
            return
        if isinstance(outcome, TimeoutError):
            outcome = Unavailable(f"no answer within {self._timeout:g} s")
        if isinstance(outcome, LookupFailed):
            # Each caller gets a copy, because a `raise` adds its traceback to the exception.
            outcome = self._cache.get_stale(query) or outcome.copy()
        if isinstance(outcome, Answer):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    def _detach(self, call: _Call) -> None:
        if self._calls.get(call.query.text) is call:
            del self._calls[call.query.text]

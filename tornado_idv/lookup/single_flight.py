"""Single flight: concurrent callers with one query share one running lookup.

A lookup runs in a task of its own, so that it goes on when the caller that started it leaves.
Each caller has its own future and its own deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from tornado_idv.errors import LookupFailed
from tornado_idv.lookup.deadlines import DeadlineQueue
from tornado_idv.model import Answer, Query

Lookup = Callable[[Query], Coroutine[Any, Any, Answer]]
"""Ask the backends; raises `LookupFailed` if they cannot determine the answer."""

Finish = Callable[[Query, Answer | Exception], Answer]
"""Turn the outcome of a shared lookup into one caller's result, returned or raised."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """One caller; ``shared`` if the lookup was already running for another."""

    call: _Call
    future: asyncio.Future[Answer]
    finish: Finish
    shared: bool


@dataclass(slots=True, eq=False)
class _Call:
    """One running lookup and its waiters.

    A call that is not ``current`` any more takes no new waiters, and its result is not stored.
    """

    query: Query
    current: bool = True
    task: asyncio.Task[None] = field(init=False)
    waiters: list[_Waiter] = field(default_factory=list)


class SingleFlight:
    """Running lookups by query.

    ``on_answer`` and ``on_failure`` are called with the outcome of each call that is still
    current, before its waiters get it: a caller that sees an answer can rely on its being stored.
    """

    def __init__(
        self,
        on_answer: Callable[[Query, Answer], None],
        on_failure: Callable[[Query, LookupFailed], None],
    ) -> None:
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._calls: dict[str, _Call] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # also of calls that are not current
        self._deadlines = DeadlineQueue(self._time_out)

    def add(
        self, query: Query, lookup: Lookup, timeout: float, finish: Finish
    ) -> asyncio.Future[Answer]:
        """Join the running lookup of the query, or start one.

        After ``timeout`` seconds ``finish`` gets a `TimeoutError`, and the next caller starts
        a new lookup.
        """
        loop = asyncio.get_running_loop()
        running = self._calls.get(query.text)
        call = running or self._start(query, lookup)
        waiter = _Waiter(call, loop.create_future(), finish, shared=running is not None)
        call.waiters.append(waiter)
        self._deadlines.add(waiter, loop.time() + timeout)
        return waiter.future

    async def refresh(self, query: Query, lookup: Lookup, max_wait: float) -> None:
        """Run a lookup for its effects alone, unless one is running; wait ``max_wait`` seconds."""
        if query.text not in self._calls:
            call = self._start(query, lookup)
            await asyncio.wait([call.task], timeout=max_wait)
            self._detach(call)

    @property
    def queries(self) -> list[Query]:
        """The queries of the current calls."""
        return [call.query for call in self._calls.values()]

    async def join(self) -> None:
        """Wait until no lookup is running, also none that is not current."""
        while self._tasks:
            done, _ = await asyncio.wait(self._tasks)
            self._tasks -= done  # those that were cancelled before they began

    def detach_all(self) -> None:
        """Let running lookups end for those who wait, with results that are not stored."""
        for call in self._calls.values():
            call.current = False
        self._calls.clear()

    def _start(self, query: Query, lookup: Lookup) -> _Call:
        call = self._calls[query.text] = _Call(query)
        call.task = asyncio.get_running_loop().create_task(self._run(call, lookup))
        self._tasks.add(call.task)
        return call

    async def _run(self, call: _Call, lookup: Lookup) -> None:
        try:
            answer = await lookup(call.query)
        except LookupFailed as error:
            if call.current:
                self._on_failure(call.query, error)
            self._resolve(call, error)
        except Exception as error:  # noqa: BLE001 - raised to each waiter
            self._resolve(call, error)
        except asyncio.CancelledError:
            for waiter in call.waiters:
                waiter.future.cancel()
            raise
        else:
            if call.current:
                self._on_answer(call.query, answer)
            self._resolve(call, answer)
        finally:
            self._detach(call)
            self._tasks.discard(call.task)  # a done callback would take 3 % of a missed lookup
            call.waiters.clear()  # they refer to the call

    def _resolve(self, call: _Call, outcome: Answer | Exception) -> None:
        for waiter in call.waiters:
            self._deadlines.discard(waiter)
            if waiter.shared and isinstance(outcome, Answer):
                settle(waiter.future, call.query, replace(outcome, coalesced=True), waiter.finish)
            else:
                settle(waiter.future, call.query, outcome, waiter.finish)

    def _time_out(self, waiter: _Waiter) -> None:
        # The call may hang: it keeps its waiters, and later callers do not join it.
        self._detach(waiter.call)
        settle(waiter.future, waiter.call.query, TimeoutError(), waiter.finish)

    def _detach(self, call: _Call) -> None:
        if call.current:
            call.current = False
            del self._calls[call.query.text]


def settle(
    future: asyncio.Future[Answer], query: Query, outcome: Answer | Exception, finish: Finish
) -> None:
    """Put what ``finish`` makes of an outcome into a caller's future, unless the caller left."""
    if future.done():
        return
    try:
        answer = finish(query, outcome)
    except Exception as error:  # noqa: BLE001 - raised to the one caller
        future.set_exception(error)
    else:
        future.set_result(answer)

"""The shared cache behind the answer cache: bounded in time, behind a circuit breaker.

Whatever fails here is a miss: a lookup goes on to the backends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from tornado_idv.errors import format_traceback
from tornado_idv.interfaces.backend import BreakerOptions
from tornado_idv.interfaces.shared import AnySharedCache, Purge, SharedResult
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.circuit_breaker import CircuitBreaker, Permit
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Query
from tornado_idv.plugin_calls import bounded, failure_reason, is_cancelled

_log = logging.getLogger(__name__)
_BREAKER = BreakerOptions(open_for=1.0, open_max=4.0)
"""A probe costs one lookup at most ``timeout``, so it may come often."""
_PURGE_TIMEOUT = 1.0
_PURGE_PAUSE = 0.25
"""Seconds between two attempts to purge."""
_CLOSE_TIMEOUT = 1.0
NAME = "shared cache"
"""The name by which it is counted and reported; no backend can have it."""
_MAX_QUERIES = 1000
"""Users that one purge may name; more are purged with everything else."""

ResultT = TypeVar("ResultT")


def _union(purges: Sequence[Purge]) -> Purge:
    """Return one purge of all that these name, or of everything if that is too much."""
    backends = dict.fromkeys(name for each in purges for name in each.backends)
    queries = dict.fromkeys(query for each in purges for query in each.queries)
    if not all(map(any, purges)) or len(queries) > _MAX_QUERIES:
        return Purge()
    return Purge(tuple(backends), tuple(queries))


class SharedTier:
    """A shared cache as directories use it. ``clock`` gives wall-clock seconds.

    In ``counters`` it is `NAME`; that a read was a hit or a miss is counted by its caller.
    """

    def __init__(
        self,
        cache: AnySharedCache,
        counters: Counters | None = None,
        *,
        timer: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.cache = cache
        self.clock = clock
        self.counted = (counters or Counters()).backends[NAME]
        self.breaker = CircuitBreaker(_BREAKER, timer)
        self._added = 0
        self._delivered = 0
        self._unsent: list[Purge] = []
        self._missed: list[Purge] = []
        self._purge_delivered = asyncio.Event()
        self._purge_failure: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def in_flight(self) -> int:
        """The number of stores and purges that are running."""
        return len(self._tasks)

    @property
    def pending_purges(self) -> int:
        """The number of purges that are not delivered yet."""
        return self._added - self._delivered

    @property
    def problem(self) -> str | None:
        """Why nothing is read, though the circuit breaker may be closed."""
        return "a purge cannot be delivered" if self._purge_failure else None

    async def open(self) -> None:
        """Open the cache, and keep what others purge for the first who follows that."""
        await self.cache.open()
        self.cache.on_purge(self._missed.append)

    def follow(self, cache: AnswerCache) -> None:
        """Purge this cache as others ask for it, from now on."""
        for each in self._missed:
            cache.apply(each)
        self._missed.clear()
        self.cache.on_purge(cache.apply)

    async def get(self, scope: str, query: Query) -> SharedResult | None:
        """Return what is stored, ``None`` if that could not be determined in time."""
        # What is stored may be older than a purge that is delivered while it is read.
        permit = None if self.pending_purges else self.breaker.try_acquire()
        if permit is not None:
            result = await self._call(permit, lambda: self.cache.get(scope, query), "failed")
            if result is None or not self.pending_purges:
                return result
        self.counted.results["skipped"] += 1
        return None

    def put(self, scope: str, query: Query, result: SharedResult) -> None:
        """Store an answer in the background."""
        self._start(self._put(scope, query, result))

    def purge(self, purge: Purge) -> None:
        """Purge for every process, at once, and try again until that has succeeded.

        Until then nothing is read here.
        """
        self._added += 1
        self._unsent.append(purge)
        if self.pending_purges == 1:
            self._start(self._send_purges())

    async def wait_until_purged(self) -> bool:
        """Wait up to 1 s for all purges so far; return whether they were delivered."""
        last = self._added
        with suppress(TimeoutError):
            async with asyncio.timeout(_PURGE_TIMEOUT):
                while self._delivered < last:
                    await self._purge_delivered.wait()
        return self._delivered >= last

    async def close(self) -> None:
        """Cancel what is running, except that purges have 1 s more, and close the cache."""
        if not await self.wait_until_purged():
            _log.error(
                "shared cache: a purge was not delivered before the stop: other processes may "
                "serve what it named until that expires; purge again"
            )
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT)
        try:
            await bounded(_CLOSE_TIMEOUT, self.cache.close())
        except Exception as error:  # noqa: BLE001 - the backends must still be closed
            _log.error("the shared cache failed to close:\n%s", format_traceback(error))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _put(self, scope: str, query: Query, result: SharedResult) -> None:
        async def put() -> bool:
            await self.cache.put(scope, query, result)
            return True

        permit = self.breaker.try_acquire()
        if permit is not None and await self._call(permit, put, "not_stored"):
            self.counted.results["stored"] += 1

    async def _call(
        self, permit: Permit, call: Callable[[], Awaitable[ResultT]], failure: str
    ) -> ResultT | None:
        """Return the result of a call in time, or ``None``, counted as ``failure``."""
        try:
            result = await bounded(self.cache.options.timeout, call())
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; each is a miss
            self.counted.results[failure] += 1
            if failure == "failed":  # a store that fails makes no answer wrong or late
                self.counted.fail(failure_reason(error), self.clock())
            if self.breaker.failed(permit) and permit is Permit.REGULAR:  # once for each outage
                _log.warning(
                    "shared cache: circuit breaker open after %d failures, the last: %s; "
                    "next probe in %.2g s",
                    self.breaker.failures,
                    failure_reason(error),
                    self.breaker.next_probe,
                )
            return None
        except BaseException:
            self.breaker.abandoned(permit)
            raise
        self.breaker.succeeded(permit)
        return result

    async def _send_purges(self) -> None:
        sending, last = list[Purge](), self._delivered
        while self.pending_purges and not is_cancelled():  # a plugin may ignore the cancellation
            if self._unsent:  # otherwise an attempt is repeated with the same object
                sending, last = [_union([*sending, *self._unsent])], self._added
                self._unsent = []
            try:
                await bounded(_PURGE_TIMEOUT, self.cache.purge(sending[0]))
            except Exception as error:  # noqa: BLE001 - as above
                reason = failure_reason(error)
                self.counted.results["not_purged"] += 1
                self.counted.fail(reason, self.clock())
                if reason != self._purge_failure:
                    _log.error(
                        "shared cache: not purged: %s; not used, and trying again every %g s",
                        reason,
                        _PURGE_PAUSE,
                    )
                self._purge_failure = reason
                await asyncio.sleep(_PURGE_PAUSE)
            else:
                self.counted.results["purged"] += last - self._delivered
                self.counted.failing_since = self._purge_failure = None
                self._delivered = last
                self._purge_delivered.set()
                self._purge_delivered = asyncio.Event()
                sending = []

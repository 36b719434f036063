"""Calls to the shared cache, with timeouts and a circuit breaker.

A failed read counts as a miss: the lookup continues with the backends.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from tornado_idv.errors import Broken, LookupFailed, format_traceback
from tornado_idv.interfaces.backend import BreakerOptions
from tornado_idv.interfaces.shared import AnySharedCache, Purge, SharedResult
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.circuit_breaker import CircuitBreaker, Permit
from tornado_idv.lookup.deadlines import is_cancelled
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Query

_log = logging.getLogger(__name__)
_BREAKER = BreakerOptions(open_for=1.0, open_max=4.0)
"""Options of the circuit breaker. The times are short because a probe is cheap: it delays one
lookup by at most ``timeout``."""
_PURGE_TIMEOUT = 1.0
_PURGE_PAUSE = 0.25
"""Seconds between two attempts to purge."""
_CLOSE_TIMEOUT = 1.0
NAME = "shared cache"
"""The shared cache's name in counters. No backend can have it, because it contains a blank."""
_MAX_QUERIES = 1000
"""Maximum number of queries in one purge. Above it, all answers are purged."""

ResultT = TypeVar("ResultT")


def _union(purges: Sequence[Purge]) -> Purge:
    """Combine purges into one. Above `_MAX_QUERIES` queries, return a purge of all answers."""
    backends = dict.fromkeys(name for each in purges for name in each.backends)
    queries = dict.fromkeys(query for each in purges for query in each.queries)
    if not all(map(any, purges)) or len(queries) > _MAX_QUERIES:
        return Purge()
    return Purge(tuple(backends), tuple(queries))


class SharedTier:
    """Calls a `SharedCache`, with timeouts, a circuit breaker and retries of purges.

    Calls are counted as `NAME` in ``counters``. The caller of `get` counts hits and misses.
    ``timer`` returns monotonic seconds, and ``clock`` Unix time.
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
        self.tasks: set[asyncio.Task[None]] = set()
        """The running calls that store or purge answers."""

    @property
    def pending_purges(self) -> int:
        """The number of purges that the shared cache has not yet received."""
        return self._added - self._delivered

    @property
    def problem(self) -> str | None:
        """The error while a failed purge prevents reads of the shared cache, or ``None``."""
        return "a purge cannot be delivered" if self._purge_failure else None

    async def open(self) -> None:
        """Open the shared cache. Collect purges by other processes until `follow` is called."""
        await self.cache.open()
        self.cache.on_purge(self._missed.append)

    def follow(self, cache: AnswerCache) -> None:
        """From now on, apply purges by other processes to ``cache``, not to the previous one."""
        for each in self._missed:
            cache.apply(each)
        self._missed.clear()
        self.cache.on_purge(cache.apply)

    async def get(self, scope: str, query: Query) -> SharedResult | None:
        """Return the stored result, or ``None`` if the read fails or is skipped."""
        # While a purge is pending, the shared cache may return purged answers. A purge may also
        # begin during the read, so this is checked again afterwards.
        permit = None if self.pending_purges else self.breaker.try_acquire()
        if permit is not None:
            result = None
            with self._counting(permit, "failed"):
                result = await _bounded(self.cache.options.timeout, self.cache.get(scope, query))
            if result is None or not self.pending_purges:
                return result
        self.counted.results["skipped"] += 1
        return None

    def put(self, scope: str, query: Query, result: SharedResult) -> None:
        """Store an answer in the background."""
        self._start(self._put(scope, query, result))

    def purge(self, purge: Purge) -> None:
        """Start a purge for all processes. It is repeated until it succeeds.

        Until then, this process does not read the shared cache.
        """
        self._added += 1
        self._unsent.append(purge)
        if self.pending_purges == 1:
            self._start(self._send_purges())

    async def wait_until_purged(self) -> bool:
        """Wait up to 1 s until the shared cache has received all purges. Return whether it has."""
        last = self._added
        with suppress(TimeoutError):
            async with asyncio.timeout(_PURGE_TIMEOUT):
                while self._delivered < last:
                    await self._purge_delivered.wait()
        return self._delivered >= last

    async def close(self) -> None:
        """Wait up to 1 s for purges, cancel the calls still running, and close the shared cache."""
        if not await self.wait_until_purged():
            _log.error(
                "shared cache: a purge was not delivered before the stop: other processes may "
                "serve the purged answers until they expire; purge again"
            )
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=_CLOSE_TIMEOUT)
        try:
            await _bounded(_CLOSE_TIMEOUT, self.cache.close())
        except Exception as error:  # noqa: BLE001 - the backends must still be closed
            _log.error("shared cache: closing failed:\n%s", format_traceback(error))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _put(self, scope: str, query: Query, result: SharedResult) -> None:
        permit = self.breaker.try_acquire()
        if permit is not None:
            with self._counting(permit, "not_stored"):
                await _bounded(self.cache.options.timeout, self.cache.put(scope, query, result))
                self.counted.results["stored"] += 1

    @contextmanager
    def _counting(self, permit: Permit, failure: str) -> Iterator[None]:
        """Report a call to the breaker. Count an error as ``failure`` instead of raising it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; each is a miss
            self.counted.results[failure] += 1
            if failure == "failed":  # only failed reads delay answers
                self.counted.fail(_failure_reason(error), self.clock())
            if self.breaker.failed(permit) and permit == "regular":  # once for each outage
                _log.warning(
                    "shared cache: circuit breaker open after %d failures, the last: %s; "
                    "next probe in %.2g s",
                    self.breaker.failures,
                    _failure_reason(error),
                    self.breaker.next_probe,
                )
        except BaseException:
            self.breaker.abandoned(permit)
            raise
        else:
            self.breaker.succeeded(permit)

    async def _send_purges(self) -> None:
        sending, last = list[Purge](), self._delivered
        while self.pending_purges and not is_cancelled():  # a plugin may ignore the cancellation
            # A failed purge is repeated, combined with all new purges. Without new purges, it is
            # the same object, so a plugin can recognize the repetition.
            if self._unsent:
                sending, last = [_union([*sending, *self._unsent])], self._added
                self._unsent = []
            try:
                await _bounded(_PURGE_TIMEOUT, self.cache.purge(sending[0]))
            except Exception as error:  # noqa: BLE001 - as above
                reason = _failure_reason(error)
                self.counted.results["not_purged"] += 1
                self.counted.fail(reason, self.clock())
                if reason != self._purge_failure:
                    _log.error(
                        "shared cache: purge failed: %s; the cache is not read until a "
                        "purge succeeds; next attempt in %g s",
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


async def _bounded(seconds: float, call: Awaitable[ResultT]) -> ResultT:
    """Return the result of a call to a plugin. Raises `TimeoutError` after ``seconds``.

    If the plugin raises `CancelledError`, raises `Broken` instead, so that the caller continues.
    """
    try:
        async with asyncio.timeout(seconds):
            return await call
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise Broken("raised CancelledError by itself") from None


def _failure_reason(error: Exception) -> str:
    """Return a description of a plugin's failure, without messages that may contain a query."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    return error.reason if isinstance(error, LookupFailed) else type(error).__name__

"""The shared cache behind the answer cache: bounded in time, behind a circuit breaker.

Whatever fails here is a miss: a lookup goes on to the backends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tornado_idv.backend import BreakerOptions
from tornado_idv.errors import LookupFailed, format_traceback
from tornado_idv.lookup.circuit_breaker import CircuitBreaker, Permit
from tornado_idv.model import Query
from tornado_idv.shared_cache import AnySharedCache, Purge, SharedResult

_log = logging.getLogger(__name__)
_BREAKER = BreakerOptions(open_for=1.0, open_max=4.0)
"""A probe costs one lookup at most ``timeout``, so it may come often."""
_PURGE_TIMEOUT = 1.0
_PURGE_PAUSE = 1.0
"""Seconds between two attempts to purge."""

ResultT = TypeVar("ResultT")


class SharedTier:
    """A shared cache as directories use it. ``clock`` gives wall-clock seconds."""

    def __init__(
        self,
        cache: AnySharedCache,
        *,
        timer: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.cache = cache
        self.clock = clock
        self._breaker = CircuitBreaker(_BREAKER, timer)
        self._purges: list[Purge] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_down(self) -> bool:
        """Whether the circuit breaker is open: nothing would be called."""
        return self._breaker.state == "open"

    async def get(self, scope: str, query: Query) -> SharedResult | None:
        """Return what is stored, ``None`` if that could not be determined in time."""
        # What is stored may be older than a purge that is delivered while it is read.
        if self._purges:
            return None
        result = await self._bounded(lambda: self.cache.get(scope, query))
        return None if self._purges else result

    def put(self, scope: str, query: Query, result: SharedResult) -> None:
        """Store an answer in the background."""
        self._start(self._put(scope, query, result))

    def purge(self, purge: Purge) -> None:
        """Purge for every process, and try again until that has succeeded.

        Until then nothing is read here.
        """
        self._purges.append(purge)
        if len(self._purges) == 1:
            self._start(self._send_purges())

    async def close(self) -> None:
        """Cancel what is running, and close the cache."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.cache.close()
        except Exception as error:  # noqa: BLE001 - the backends must still be closed
            _log.error("the shared cache failed to close:\n%s", format_traceback(error))

    def _start(self, coroutine: Awaitable[None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _put(self, scope: str, query: Query, result: SharedResult) -> None:
        await self._bounded(lambda: self.cache.put(scope, query, result))

    async def _bounded(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT | None:
        permit = self._breaker.try_acquire()
        if permit is None:
            return None
        try:
            async with asyncio.timeout(self.cache.options.timeout):
                result = await call()
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; each is a miss
            if self._breaker.failed(permit) and permit is Permit.REGULAR:  # once for each outage
                _log.warning(
                    "shared cache: circuit breaker open after %d failures, the last: %s; "
                    "next probe in %.2g s",
                    self._breaker.failures,
                    _reason(error),
                    self._breaker.next_probe,
                )
            return None
        except BaseException:
            self._breaker.abandoned(permit)
            raise
        self._breaker.succeeded(permit)
        return result

    async def _send_purges(self) -> None:
        while self._purges:
            count = len(self._purges)
            purge = self._purges[0] if count == 1 else Purge()
            try:
                async with asyncio.timeout(_PURGE_TIMEOUT):
                    await self.cache.purge(purge)
            except Exception as error:  # noqa: BLE001 - as above
                _log.error(
                    "shared cache: not purged: %s; not used, and trying again every %g s",
                    _reason(error),
                    _PURGE_PAUSE,
                )
                await asyncio.sleep(_PURGE_PAUSE)
            else:
                del self._purges[:count]


def _reason(error: Exception) -> str:
    """Return why a call failed; the message of an unexpected error may contain the query."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    return error.reason if isinstance(error, LookupFailed) else type(error).__name__

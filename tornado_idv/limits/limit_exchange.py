"""Exchange of what keys have used with other machines, in the background.

Each process adds what it has allowed to a TAT that all share, and moves its own forward to that.
It decides by its own alone, so no request waits for an exchange. If one fails, what it would have
added is not added later: without exchange the limits of each machine apply alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from tornado_idv.errors import format_traceback
from tornado_idv.interfaces.shared import AnySharedLimits, LimitUse
from tornado_idv.limits.key_limits import KeyLimiter, KeyUse
from tornado_idv.metrics.counters import Counters
from tornado_idv.plugin_calls import bounded, failure_reason, is_cancelled

_log = logging.getLogger(__name__)
INTERVAL = 0.1
"""Seconds between two exchanges."""
_RETRY_INTERVAL = 1.0
"""Seconds between two exchanges while they fail."""
_TIMEOUT = 1.0
_BATCH = 200
"""Limits in one exchange: more would delay other clients of the server, and requests here."""


class LimitExchange:
    """Exchanges the uses of a limiter; ``error`` says why that fails, since ``since`` (Unix time).

    ``clock`` is that of the limiter, monotonic and in seconds.
    """

    def __init__(
        self,
        shared: AnySharedLimits,
        limiter: KeyLimiter,
        counters: Counters,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.error: str | None = None
        self.since = time.time()
        self._shared = shared
        self._limiter = limiter
        self._counters = counters
        self._clock = clock
        self._taken_at = clock()
        self._is_connected = False
        limiter.count_uses()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Exchange in the background, and close the connections at the end."""
        running = asyncio.create_task(self._run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running], timeout=_TIMEOUT)
            try:
                await bounded(_TIMEOUT, self._shared.close())
            except Exception as error:  # noqa: BLE001 - the rest must still be closed
                _log.error("the shared limits failed to close:\n%s", format_traceback(error))

    async def _run(self) -> None:
        while not is_cancelled():  # a plugin may ignore the cancellation
            await self.exchange()
            await asyncio.sleep(INTERVAL if self._is_connected else _RETRY_INTERVAL)

    async def exchange(self) -> None:
        """Exchange what was used since the last time; if that fails, log it."""
        uses, since = self._limiter.take_uses(), self._taken_at
        self._taken_at = self._clock()
        if self._is_connected and not uses:
            return
        try:
            await bounded(_TIMEOUT, self._exchange_all(uses, since))
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            reason = failure_reason(error)
            self._counters.limit_exchanges["failed"] += 1
            if reason != self.error:
                _log.warning(
                    "shared limits: not exchanged: %s; the limits of keys apply on each machine "
                    "separately, trying again every %g s",
                    reason,
                    _RETRY_INTERVAL,
                )
            if self.error is None:
                self.since = time.time()
            self.error, self._is_connected = reason, False
        else:
            self._counters.limit_exchanges["ok"] += 1
            if self.error is not None:
                _log.info("shared limits: exchanged again")
                self.error, self.since = None, time.time()
            self._is_connected = True

    async def _exchange_all(self, uses: Sequence[KeyUse], since: float) -> None:
        for start in range(0, len(uses) or 1, _BATCH):
            batch, now = uses[start : start + _BATCH], self._clock()
            named = [
                # With another rate another count begins.
                LimitUse(
                    f"{limit.name} {limit.rate.count}/{limit.rate.seconds} {limits.key.id}",
                    events * limit.interval,
                )
                for limits, limit, events in batch
            ]
            ahead = await self._shared.exchange(now - since, named)
            # By the time before the exchange, so that its duration delays no request.
            for use, seconds in zip(batch, ahead, strict=True):
                self._limiter.advance(use, now + seconds)

"""Fair queues: how many requests that wait start in one event-loop iteration.

Without a bound, a thousand clients that pipeline make each iteration as long as a thousand
requests, and a client that connects meanwhile waits for several iterations. So pipelined
requests start for `PIPELINED_BUDGET` seconds, and the rest in later iterations.

Requests of connections that have not shown a valid key start one per iteration, and more only
while they take at most as long as everything else did since the last time. So a flood of invalid
keys takes at most half of the time, and a busy service does not starve new clients.
"""

from __future__ import annotations

import time
from asyncio import AbstractEventLoop
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

PIPELINED_BUDGET = 0.01
UNAUTHENTICATED_SHARE = 1.0
_MAX_BUDGET = 0.05
"""Seconds: an upper bound, also after the process was suspended."""


class Waiter(Protocol):
    """A connection in the queue."""

    def resume(self) -> None:
        """Start the next request."""


class FairQueue:
    """First in, first out, each at most once per iteration, and at least one.

    In an iteration waiters are resumed for ``budget`` seconds, or for ``share`` of the time that
    everything else took if that is more. ``timer`` returns seconds.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        timer: Callable[[], float] = time.perf_counter,
        *,
        budget: float = 0.0,
        share: float = 0.0,
    ) -> None:
        self._loop = loop
        self._timer = timer
        self._budget = budget
        self._share = share
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self._scheduled = False
        self._scheduled_at = 0.0

    def enqueue(self, waiter: Waiter) -> None:
        """Resume ``waiter`` once, after all that wait already; if it waits, keep its position."""
        self._waiters.setdefault(waiter)
        if not self._scheduled:
            self._schedule()

    def cancel(self, waiter: Waiter) -> None:
        """Remove ``waiter``, if it waits."""
        self._waiters.pop(waiter, None)

    def _schedule(self) -> None:
        self._scheduled = True
        self._scheduled_at = self._timer()
        self._loop.call_soon(self._run)

    def _run(self) -> None:
        now = self._timer()
        share = min((now - self._scheduled_at) * self._share, _MAX_BUDGET)
        until = now + max(share, self._budget)
        try:
            for _ in range(len(self._waiters)):
                self._resume_first()
                if self._timer() >= until:
                    break
        finally:
            self._scheduled = False
            if self._waiters:
                self._schedule()

    def _resume_first(self) -> None:
        if self._waiters:  # one that was resumed may have removed others
            waiter, _ = self._waiters.popitem(last=False)
            waiter.resume()

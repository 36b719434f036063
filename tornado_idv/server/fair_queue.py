"""A fair queue for requests on connections that have not shown a valid key.

In each event-loop iteration at least one of them starts, and more only while they take at most
half as long as everything else did since the last time. So a flood of invalid keys slows other
traffic down by at most a half, and a busy service does not starve new clients.
"""

from __future__ import annotations

import time
from asyncio import AbstractEventLoop
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

_SHARE = 0.5
"""The time that the queue may use, as a fraction of the time that everything else used."""
_MAX_BUDGET = 0.05
"""Seconds: an upper bound, also after the process was suspended."""


class Waiter(Protocol):
    """A connection in the queue."""

    def resume(self) -> None:
        """Start the next request."""


class FairQueue:
    """First in, first out; ``timer`` returns seconds and must advance within an iteration."""

    def __init__(
        self, loop: AbstractEventLoop, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loop = loop
        self._timer = timer
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

    def __contains__(self, waiter: Waiter) -> bool:
        """Whether ``waiter`` waits."""
        return waiter in self._waiters

    def _schedule(self) -> None:
        self._scheduled = True
        self._scheduled_at = self._timer()
        self._loop.call_soon(self._run)

    def _run(self) -> None:
        now = self._timer()
        until = now + min((now - self._scheduled_at) * _SHARE, _MAX_BUDGET)
        try:
            while self._waiters:
                waiter, _ = self._waiters.popitem(last=False)
                waiter.resume()
                if self._timer() >= until:
                    break
        finally:
            self._scheduled = False
            if self._waiters:
                self._schedule()

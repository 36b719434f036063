"""The delay of the event loop: how much later than scheduled a timer fires."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tornado_idv.metrics.counters import Counters

_INTERVAL = 0.25


class _LagTimer:
    """Measures the delay every 0.25 s."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._schedule()

    def _schedule(self) -> None:
        self._due = self._loop.time() + _INTERVAL
        self._timer = self._loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        lag = self._loop.time() - self._due
        self._counters.max_lag = max(self._counters.max_lag, lag)
        self._schedule()

    def stop(self) -> None:
        self._timer.cancel()


@contextmanager
def measured_lag(counters: Counters) -> Iterator[None]:
    """Measure the delay of the running event loop within."""
    timer = _LagTimer(counters)
    try:
        yield
    finally:
        timer.stop()

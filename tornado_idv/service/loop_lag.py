"""The lag of the event loop: the delay of its timers. Blocking calls increase it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tornado_idv.metrics.counters import Counters

_log = logging.getLogger(__name__)
_INTERVAL = 0.1
_LIMIT = 1.0
"""Seconds of lag above which the loop counts as blocked."""


@contextmanager
def measured_lag(counters: Counters) -> Iterator[None]:
    """Measure the lag of the running event loop. Log each time that the loop was blocked.

    Each process enters this context after the fork.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def measure() -> None:
        nonlocal timer
        lag = loop.time() - timer.when()
        counters.max_lag = max(counters.max_lag, lag)
        if lag > _LIMIT:
            _log.warning("event loop was blocked for %.1f s", lag)
        timer = loop.call_later(_INTERVAL, measure)

    timer = loop.call_later(_INTERVAL, measure)
    try:
        yield
    finally:
        timer.cancel()

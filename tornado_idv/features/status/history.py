"""The history of the last 15 minutes for the status page, with one sample per second."""

import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from tornado.ioloop import IOLoop, PeriodicCallback

from tornado_idv.admin.operations import OperationFailed, Operations
from tornado_idv.admin.report import Report
from tornado_idv.metrics.counters import BOUNDS, sum_buckets
from tornado_idv.web.errors import ApiError

INTERVAL = 1
"""Seconds between two samples."""
WINDOW = 5
"""Seconds covered by a sample. In a shorter time, single requests would make the charts jump."""
_MAX_SAMPLES = 900
_BACKEND_WINDOW = 60
"""Seconds covered by backend latencies. More than for samples, because backends get fewer calls."""
_OK, _SERVER_ERROR = 200, 500
_STATUSES = {error.code: error.status for error in ApiError}
"""HTTP status by error code. The code ``ok`` of found users is not included."""


class Sample(NamedTuple):
    """Rates per second and latencies in milliseconds. Without requests, latencies are ``None``.

    ``time`` is a Unix time. ``errors`` is the rate of responses with a status of 500 or more.
    ``status_404`` includes missing users and missing routes. ``stale`` is the rate of expired
    answers, served because the lookup failed.
    """

    time: float
    requests: float
    errors: float
    status_401: float
    status_403: float
    status_404: float
    status_429: float
    p50: float | None
    p95: float | None
    p99: float | None
    hit_ratio: float | None
    stale: float


class _Totals(NamedTuple):
    """The counters of the service at the time ``at``, in seconds of the timer."""

    at: float
    statuses: Counter[int]
    buckets: list[int]
    lookups: Counter[str]
    backends: dict[str, list[int]]


class History:
    """The samples of a service. ``timer`` returns seconds, and ``clock`` Unix time."""

    def __init__(
        self, timer: Callable[[], float] = time.monotonic, clock: Callable[[], float] = time.time
    ) -> None:
        self._timer = timer
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=_MAX_SAMPLES)
        self._totals: deque[_Totals] = deque(maxlen=_BACKEND_WINDOW + 1)

    def sample(self, report: Report) -> None:
        """Add a sample. Call this every `INTERVAL` seconds. The first call adds no sample."""
        self._totals.append(_count(report, self._timer()))
        if len(self._totals) == 1:
            return
        before, now = self._totals[max(-WINDOW - 1, -len(self._totals))], self._totals[-1]
        seconds = now.at - before.at
        buckets = _difference(now.buckets, before.buckets)
        lookups = now.lookups - before.lookups
        total = lookups.total()
        statuses = now.statuses - before.statuses

        def rate(count: int) -> float:
            return round(count / seconds, 2)

        self._samples.append(
            Sample(
                time=round(self._clock(), 1),
                requests=rate(statuses.total()),
                errors=rate(sum(n for status, n in statuses.items() if status >= _SERVER_ERROR)),
                **{f"status_{code}": rate(statuses[code]) for code in (401, 403, 404, 429)},
                p50=percentile(buckets, 50),
                p95=percentile(buckets, 95),
                p99=percentile(buckets, 99),
                hit_ratio=round(lookups["hit"] / total, 4) if total else None,
                stale=rate(lookups["stale"]),
            )
        )

    @property
    def latest(self) -> dict[str, float | None] | None:
        """The last sample as a dictionary, or ``None`` before the first one."""
        return self._samples[-1]._asdict() if self._samples else None

    def columns(self) -> dict[str, list[float | None]]:
        """Return one list for each field of `Sample`: its values in all samples, oldest first."""
        return {
            name: [sample[i] for sample in self._samples] for i, name in enumerate(Sample._fields)
        }

    def backend_latency(self, name: str) -> dict[str, float | None]:
        """Return the latency percentiles of a backend in the last minute, in milliseconds."""
        if not self._totals:
            return {"p50": None, "p99": None}
        before, now = (self._totals[i].backends.get(name, sum_buckets(())) for i in (0, -1))
        buckets = _difference(now, before)
        return {f"p{each}": percentile(buckets, each) for each in (50, 99)}


@asynccontextmanager
async def sampled(operations: Operations) -> AsyncIterator[History]:
    """Yield a history, and sample the service until the end of the context."""
    history = History()

    async def sample() -> None:
        with suppress(OperationFailed):  # the next sample covers the missed time
            history.sample(await operations.report())

    timer = PeriodicCallback(sample, INTERVAL * 1000)
    IOLoop.current().add_callback(sample)
    timer.start()
    try:
        yield history
    finally:
        timer.stop()


def _count(report: Report, at: float) -> _Totals:
    counters = report.counters
    responses = counters.responses.items()
    statuses: Counter[int] = Counter()
    for (_, code), each in responses:
        statuses[_STATUSES.get(code, _OK)] += each.count
    return _Totals(
        at=at,
        statuses=statuses,
        buckets=sum_buckets(each.buckets for _, each in responses),
        lookups=Counter(counters.cache_lookups),
        backends={name: [*each.durations.buckets] for name, each in counters.backends.items()},
    )


def _difference(now: list[int], before: list[int]) -> list[int]:
    return [a - b for a, b in zip(now, before, strict=True)]


def percentile(buckets: Sequence[int], percent: int) -> float | None:
    """Return a percentile of durations in milliseconds, or ``None`` without events.

    As in Prometheus, events are assumed to be evenly distributed within their bucket. Events above
    the last bound count as equal to this bound.
    """
    rank = sum(buckets) * percent / 100
    if rank <= 0:
        return None
    below = 0
    for lower, upper, count in zip((0.0, *BOUNDS), BOUNDS, buckets, strict=False):
        if below + count >= rank:
            return round(1000 * (lower + (upper - lower) * (rank - below) / count), 3)
        below += count
    return BOUNDS[-1] * 1000

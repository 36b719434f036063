"""The counters of one process since its start. `admin.metrics` renders them.

The names of counters are fixed words, or come from `config.yaml`. They never contain API keys,
users or addresses.
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct, field, to_builtins

Record = dict[str, Any]

BOUNDS = (
    *(5e-05, 1e-04, 2.5e-04, 5e-04, 1e-03, 2.5e-03, 5e-03),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
"""Upper bounds of the buckets of a histogram, in seconds."""


class Durations(Struct, eq=False):
    """A histogram of the durations of events.

    ``buckets`` contains the number of events for each of `BOUNDS`, and for longer durations.
    ``seconds`` is the sum of all durations.
    """

    buckets: list[int] = field(default_factory=lambda: sum_buckets(()))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self.buckets[bisect_left(BOUNDS, seconds)] += 1

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def merge(self, record: Record) -> None:
        """Add the counts in the JSON record of another process."""
        self.buckets = sum_buckets([self.buckets, record["buckets"]])
        self.seconds += record["seconds"]


def sum_buckets(buckets: Iterable[list[int]]) -> list[int]:
    """Return the sums of the buckets of several histograms."""
    return [sum(column) for column in zip([0] * (len(BOUNDS) + 1), *buckets, strict=True)]


class BackendCounters(Struct, eq=False):
    """The counters of calls to one backend.

    ``failing_since`` is the Unix time of the first failure after the last success. After a success
    it is ``None``. ``last_error`` is the short description of the last failure, and
    ``last_error_at`` its time.
    """

    results: Counter[str] = field(default_factory=Counter)
    durations: Durations = field(default_factory=Durations)
    failing_since: float | None = None
    last_error: str | None = None
    last_error_at: float = 0.0

    def fail(self, reason: str, at: float) -> None:
        """Record a failure at the Unix time ``at``. ``reason`` is its short description."""
        self.last_error, self.last_error_at = reason, at
        if self.failing_since is None:
            self.failing_since = at


_BY_WORD = ("auth_failures", "rate_limited", "cache_lookups", "refreshes", "reloads")
_TOTALS = ("evictions", "log_dropped")
"""Attributes of `Counters`: `_BY_WORD` are mappings of words to counts, `_TOTALS` are integers."""


class Counters:
    """All counters of a process. ``clock`` returns Unix time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.started_at = clock()
        self.responses: defaultdict[tuple[str, str], Durations] = defaultdict(Durations)
        """Durations of responses by route and error code. The code of a success is ``ok``."""
        self.auth_failures: Counter[str] = Counter()
        """Failed authentications by reason."""
        self.rate_limited: Counter[str] = Counter()
        """Requests over a limit, by name of the limit."""
        self.cache_lookups: Counter[str] = Counter(hit=0, shared=0, stale=0, coalesced=0, miss=0)
        """Lookups by result of the cache."""
        self.evictions = 0
        self.refreshes: Counter[str] = Counter({"ok": 0, "failed": 0})
        self.backends: defaultdict[str, BackendCounters] = defaultdict(BackendCounters)
        """Calls by the name of a backend, or by "shared cache" or "shadow NAME". The name of a
        backend contains no space, so the names differ."""
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Counts of events in features, by part (such as a shadow) and by the name of the event."""
        self.reloads: Counter[str] = Counter({"ok": 0, "failed": 0})
        """Reloads of the configuration by result."""
        self.last_reload_success = self.started_at
        """Unix time at which the current configuration was loaded."""
        self.log_dropped = 0
        """Number of lost log lines at the last call of `process_report`."""
        self.max_lag = 0.0
        """The longest delay of the event loop since `take_max_lag`, in seconds."""

    def count_backend_call(self, name: str, result: str, reason: str, seconds: float) -> None:
        """Count a call to a backend. ``reason`` is the short description of a failure."""
        backend = self.backends[name]
        if result == "verified":
            backend.failing_since = None
            return
        backend.results[result] += 1
        if result in ("found", "not_found"):
            backend.failing_since = None
        elif result in ("unavailable", "broken"):
            backend.fail(reason, self._clock())
        else:
            return  # the backend was not called, or the call was cancelled
        backend.durations.add(seconds)

    def to_record(self) -> Record:
        """Return a JSON record of all counts that never decrease."""
        return {
            **{name: getattr(self, name) for name in (*_BY_WORD, *_TOTALS)},
            "responses": [(*key, to_builtins(each)) for key, each in self.responses.items()],
            "backends": [
                (name, each.results, to_builtins(each.durations))
                for name, each in self.backends.items()
            ],
            "counts": self.counts,
        }

    def merge(self, record: Record) -> None:
        """Add the counts of another process. ``record`` is the result of its `to_record`."""
        for name in _BY_WORD:
            getattr(self, name).update(record[name])
        for name in _TOTALS:
            setattr(self, name, getattr(self, name) + record[name])
        for route, code, durations in record["responses"]:
            self.responses[route, code].merge(durations)
        for name, results, durations in record["backends"]:
            self.backends[name].results.update(results)
            self.backends[name].durations.merge(durations)
        for name, words in record["counts"].items():
            self.counts[name].update(words)

    def take_max_lag(self) -> float:
        """Return the longest delay of the event loop since the last call."""
        lag, self.max_lag = self.max_lag, 0.0
        return lag

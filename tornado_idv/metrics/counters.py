"""Counters of one process since its start; it knows nothing of how that is rendered.

Only names from `config.yaml` and fixed words become keys here: no key, user or address does.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

Record = dict[str, Any]

BOUNDS = (
    *(5e-05, 1e-04, 2.5e-04, 5e-04, 1e-03, 2.5e-03, 5e-03),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
"""Upper bounds of the buckets of a histogram, in seconds."""
FIRST_BOUND = BOUNDS[0]
SHARED_CACHE = "shared cache"
"""The name by which the shared cache is counted; no backend can have it."""


class Durations:
    """Histogram of the durations of events."""

    __slots__ = ("fast", "seconds", "slower")

    def __init__(self) -> None:
        self.fast = 0
        """Events within the first bound, as most are; apart, since a list takes longer."""
        self.slower = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        """The sum of all durations."""

    def add(self, seconds: float) -> None:
        """Count an event."""
        self.seconds += seconds
        if seconds <= FIRST_BOUND:
            self.fast += 1
        else:
            self.add_slow(seconds)

    def add_slow(self, seconds: float) -> None:
        """Count an event above the first bound, except in ``seconds``."""
        self.slower[bisect_left(BOUNDS, seconds)] += 1

    @property
    def count(self) -> int:
        """The number of events."""
        return self.fast + sum(self.slower)

    def buckets(self) -> list[int]:
        """Return the number of events by bucket; the last has no upper bound."""
        return [self.fast, *self.slower[1:]]

    def to_record(self) -> Record:
        """Return the counts as JSON has them."""
        return {"fast": self.fast, "slower": self.slower, "seconds": self.seconds}

    def merge(self, record: Record) -> None:
        """Add the counts of another process, as `to_record` returned them."""
        self.fast += record["fast"]
        self.slower = [a + b for a, b in zip(self.slower, record["slower"], strict=True)]
        self.seconds += record["seconds"]


def sum_buckets(durations: Iterable[Durations]) -> list[int]:
    """Return the number of events of all, by bucket."""
    empty = [0] * (len(BOUNDS) + 1)
    buckets = (each.buckets() for each in durations)
    return [sum(column) for column in zip(empty, *buckets, strict=True)]


class BackendCounters:
    """The calls of one backend.

    ``failing_since`` is the Unix time of the first of the failures in a row up to now, ``None``
    after a success; ``last_error`` is the phrase of the last failure, which happened at
    ``last_error_at``.
    """

    def __init__(self) -> None:
        self.results: Counter[str] = Counter()
        self.durations = Durations()
        self.failing_since: float | None = None
        self.last_error: str | None = None
        self.last_error_at = 0.0

    def fail(self, reason: str, at: float) -> None:
        """Record a failure ``at`` a Unix time; ``reason`` is its phrase."""
        self.last_error, self.last_error_at = reason, at
        if self.failing_since is None:
            self.failing_since = at


class Counters:
    """All counters of a process. ``clock`` returns Unix time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.started_at = clock()
        self.responses: dict[tuple[str, str], Durations] = {}
        """By route and code; ``ok`` is the code of a found user."""
        self.auth_failures: Counter[str] = Counter()
        """By reason."""
        self.rate_limited: Counter[str] = Counter()
        """By limit."""
        self.limit_exchanges: Counter[str] = Counter({"ok": 0, "failed": 0})
        """Exchanges of shared limits by result."""
        self.cache_lookups: Counter[str] = Counter()
        """By what the cache contributed."""
        self.evictions = 0
        self.refreshes: Counter[str] = Counter({"ok": 0, "failed": 0})
        self.backends: dict[str, BackendCounters] = {}
        """By name; the shared cache is among them."""
        self.reloads: Counter[str] = Counter({"ok": 0, "failed": 0})
        """Reloads of the configuration by result."""
        self.last_reload_success = self.started_at
        """When the configuration in force was loaded, in Unix time."""
        self.log_dropped = 0
        """Log lines that were lost, as of the last report."""
        self.max_lag = 0.0
        """The longest delay of the event loop since it was read, in seconds."""

    def responses_of(self, route: str, code: str) -> Durations:
        """Return the durations of responses of a route with a code."""
        durations = self.responses.get((route, code))
        if durations is None:
            durations = self.responses[route, code] = Durations()
        return durations

    def backend(self, name: str) -> BackendCounters:
        """Return the counters of a backend."""
        counters = self.backends.get(name)
        if counters is None:
            counters = self.backends[name] = BackendCounters()
        return counters

    def count_backend_call(self, name: str, result: str, reason: str, seconds: float) -> None:
        """Count a call; ``reason`` is the phrase of a failure."""
        backend = self.backend(name)
        backend.results[result] += 1
        if result in ("found", "not_found"):
            backend.failing_since = None
        elif result in ("unavailable", "broken"):
            backend.fail(reason, self._clock())
        else:
            return  # not called, or given up: no duration of the backend
        backend.durations.add(seconds)

    def count_reload(self, *, succeeded: bool, at: float) -> None:
        """Count a reload that ended ``at`` a Unix time."""
        self.reloads["ok" if succeeded else "failed"] += 1
        if succeeded:
            self.last_reload_success = at

    def to_record(self) -> Record:
        """Return what only grows, as JSON has it."""
        return {
            "responses": [(*key, each.to_record()) for key, each in self.responses.items()],
            "auth_failures": self.auth_failures,
            "rate_limited": self.rate_limited,
            "limit_exchanges": self.limit_exchanges,
            "cache_lookups": self.cache_lookups,
            "evictions": self.evictions,
            "log_dropped": self.log_dropped,
            "refreshes": self.refreshes,
            "reloads": self.reloads,
            "backends": {
                name: {"results": each.results, "durations": each.durations.to_record()}
                for name, each in self.backends.items()
            },
        }

    def merge(self, record: Record) -> None:
        """Add the counts of another process, as `to_record` returned them."""
        for route, code, durations in record["responses"]:
            self.responses_of(route, code).merge(durations)
        self.auth_failures.update(record["auth_failures"])
        self.rate_limited.update(record["rate_limited"])
        self.limit_exchanges.update(record["limit_exchanges"])
        self.cache_lookups.update(record["cache_lookups"])
        self.evictions += record["evictions"]
        self.log_dropped += record["log_dropped"]
        self.refreshes.update(record["refreshes"])
        self.reloads.update(record["reloads"])
        for name, counts in record["backends"].items():
            backend = self.backend(name)
            backend.results.update(counts["results"])
            backend.durations.merge(counts["durations"])

    def take_max_lag(self) -> float:
        """Return the longest delay of the event loop since the last call."""
        lag, self.max_lag = self.max_lag, 0.0
        return lag

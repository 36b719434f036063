"""The metrics in the text formats of Prometheus and OpenMetrics.

`prometheus_client` only renders: every value is read from the service's counters when asked for.
"""

from __future__ import annotations

import heapq
import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.metadata import version
from itertools import accumulate

import tornado
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tornado_idv.admin.report import Report
from tornado_idv.admin.status import FAILURES, OPERATIONS, cache_lookups
from tornado_idv.http.connections import State
from tornado_idv.keys.ring import KeyRing
from tornado_idv.metrics.counters import BOUNDS, SHARED_CACHE, Durations, sum_buckets

_RESULTS = {"ok": "found", "not_found": "not_found"}
_BREAKER = {"closed": 0, "half_open": 1, "open": 2}
_CALL_RESULTS = ("found", "not_found", "unavailable", "broken", "rejected", "cancelled")
_REASONS = ("missing", "malformed", "unknown", "expired", "not valid yet", "revoked", "disabled")
_SHARED_CACHE_CALLS = (
    (
        "lookups",
        "Reads of the shared cache.",
        {each: each for each in ("hit", "miss", "failed", "skipped")},
    ),
    ("stores", "Answers for the shared cache.", {"ok": "stored", "failed": "not_stored"}),
    ("purges", "Purges of the shared cache.", {"ok": "purged", "failed": "not_purged"}),
)
"""Metrics, their help, and what is counted by the value of their label."""
_MAX_KEYS = 1000
"""Keys whose expiry is shown: those that expire next."""


def render(report: Report, keys: KeyRing, accept: str) -> tuple[bytes, str]:
    """Return the text and its content type, as an ``Accept`` header asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ReportCollector(report, keys))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _ReportCollector(Collector):
    """Reads one report of a service."""

    def __init__(self, report: Report, keys: KeyRing) -> None:
        self._report = report
        self._counters = report.counters
        self._expirations = keys.expirations

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._backends()
        sizes = self._report.process.cache_entries
        yield _gauge("idv_cache_entries", "Entries of the cache.", "kind", sizes.items())
        lookups = cache_lookups(self._counters)
        yield _counter("idv_cache_lookups", "Lookups.", "result", lookups.items())
        evictions = self._counters.evictions
        yield CounterMetricFamily("idv_cache_evictions", "Entries that made room.", evictions)
        refreshes = self._counters.refreshes.items()
        yield _counter("idv_cache_refreshes", "Refreshes ahead of expiry.", "result", refreshes)
        shared = self._report.process.shared_cache
        counted = self._counters.backend(SHARED_CACHE)
        for name, text, words in _SHARED_CACHE_CALLS:
            values = ((result, counted.results[word]) for result, word in words.items())
            yield _counter(f"idv_shared_cache_{name}", text, "result", values if shared else ())
        seconds = HistogramMetricFamily(
            "idv_shared_cache_duration_seconds", "Time that reads of the shared cache took."
        )
        pending = GaugeMetricFamily("idv_shared_cache_purges_pending", "Purges not delivered yet.")
        breaker = GaugeMetricFamily(
            "idv_shared_cache_breaker_state", "Circuit breaker: 0 closed, 1 half-open, 2 open."
        )
        if shared is not None:
            _add_histogram(seconds, (), [counted.durations])
            pending.add_metric((), self._report.process.pending_purges)
            breaker.add_metric((), _BREAKER[shared.breaker])
        yield from (seconds, pending, breaker)
        yield from self._keys()
        yield from self._process()

    def _requests(self) -> Iterator[Metric]:
        counts: dict[tuple[str, str], int] = defaultdict(int)
        durations: dict[tuple[str, str], list[Durations]] = defaultdict(list)
        for (route, code), each in self._counters.responses.items():
            operation = OPERATIONS.get(route, "none")
            counts[operation, code] += each.count
            durations[
                operation, _RESULTS.get(code, "failed" if code in FAILURES else "rejected")
            ].append(each)
        labels = ["operation", "code"]
        requests = CounterMetricFamily("idv_requests", "Responses.", labels=labels)
        for operation_and_code, count in counts.items():
            requests.add_metric(operation_and_code, count)
        yield requests
        seconds = HistogramMetricFamily(
            "idv_request_duration_seconds",
            "Time from a complete request to its response.",
            labels=["operation", "result"],
        )
        for operation_and_result, each_duration in durations.items():
            _add_histogram(seconds, operation_and_result, each_duration)
        yield seconds
        yield _counter(
            "idv_auth_failures",
            "Requests with the response 401.",
            "reason",
            ((each.replace(" ", "_"), self._counters.auth_failures[each]) for each in _REASONS),
        )
        limited = self._counters.rate_limited
        yield _counter(
            "idv_rate_limited",
            "Requests with the response 429.",
            "limit",
            ((each, limited[each]) for each in ("requests", "misses", "failed_auth")),
        )
        exchanges = self._counters.limit_exchanges.items()
        yield _counter("idv_limit_exchanges", "Exchanges of shared limits.", "result", exchanges)

    def _backends(self) -> Iterator[Metric]:
        labels = ["backend"]
        calls = CounterMetricFamily(
            "idv_backend_requests", "Calls of backends.", labels=["backend", "outcome"]
        )
        seconds = HistogramMetricFamily(
            "idv_backend_duration_seconds", "Time that calls of backends took.", labels=labels
        )
        in_flight = GaugeMetricFamily("idv_backend_in_flight", "Running calls.", labels=labels)
        breaker = GaugeMetricFamily(
            "idv_breaker_state", "Circuit breaker: 0 closed, 1 half-open, 2 open.", labels=labels
        )
        users = GaugeMetricFamily("idv_fixture_users", "Users of a fixture.", labels=labels)
        for each in self._report.process.backends:
            if each.users is not None:
                users.add_metric([each.name], each.users)
            counted = self._counters.backend(each.name)
            for result in _CALL_RESULTS:
                calls.add_metric([each.name, result], counted.results[result])
            _add_histogram(seconds, [each.name], [counted.durations])
            in_flight.add_metric([each.name], each.in_flight)
            breaker.add_metric([each.name], _BREAKER[each.breaker])
        yield from (calls, seconds, in_flight, breaker, users)

    def _keys(self) -> Iterator[Metric]:
        now = time.time()
        times = self._expirations().items()
        shown = heapq.nsmallest(_MAX_KEYS, times, key=lambda each: (each[1] <= now, each[1]))
        text = "When a key expires, in Unix time."
        yield _gauge("idv_key_expiry_timestamp_seconds", text, "key", shown)

    def _process(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "idv_event_loop_lag_seconds",
            "Longest delay of the event loop since the last scrape.",
            self._report.process.max_lag,
        )
        states = self._report.process.connections
        yield _gauge(
            "idv_connections",
            "Open connections of the public listener.",
            "state",
            ((each.name.lower(), states.get(each.name, 0)) for each in State),
        )
        reloads = self._counters.reloads.items()
        yield _counter("idv_reloads", "Reloads of the configuration.", "result", reloads)
        yield GaugeMetricFamily(
            "idv_config_last_reload_success_timestamp_seconds",
            "When the configuration in force was loaded, in Unix time.",
            self._counters.last_reload_success,
        )
        last = self._report.last_reload
        yield GaugeMetricFamily(
            "idv_config_last_reload_successful",
            "Whether the last reload was applied; 1 before the first.",
            int(last is None or last.code is None),
        )
        degraded = GaugeMetricFamily("idv_degraded", "Whether a part fails.", labels=["part"])
        failing = self._report.degraded()
        for part in dict.fromkeys([*self._report.parts, *failing]):
            degraded.add_metric([part], int(part in failing))
        yield degraded
        restarts = self._report.restarts
        yield CounterMetricFamily(
            "idv_worker_restarts", "Processes started in place of one that ended.", restarts
        )
        dropped = self._counters.log_dropped
        yield CounterMetricFamily("idv_log_dropped", "Log lines that were lost.", dropped)
        info = InfoMetricFamily("idv_build", "Versions.")
        info.add_metric(
            [],
            {
                "version": version("tornado-idv"),
                "python": platform.python_version(),
                "tornado": tornado.version,
            },
        )
        yield info


def _labelled(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Iterable[tuple[str, float]],
) -> Metric:
    family = kind(name, text, labels=[label])
    for value, number in values:
        family.add_metric([value], number)
    return family


_counter = partial(_labelled, CounterMetricFamily)
_gauge = partial(_labelled, GaugeMetricFamily)


def _add_histogram(
    family: HistogramMetricFamily, labels: Iterable[str], durations: Iterable[Durations]
) -> None:
    durations = list(durations)
    bounds = [*map(str, BOUNDS), "+Inf"]
    family.add_metric(
        list(labels),
        buckets=list(zip(bounds, accumulate(sum_buckets(durations)), strict=True)),
        sum_value=sum(each.seconds for each in durations),
    )

"""The metrics in the text formats of Prometheus and OpenMetrics.

`prometheus_client` only renders. For each scrape, all values are read from the service's counters.
"""

import os
import platform
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from pkgutil import resolve_name
from typing import TypeVar

import tornado
from prometheus_client import ProcessCollector, core
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tornado_idv.admin.report import BREAKERS, Report
from tornado_idv.features import FEATURES
from tornado_idv.http.connection_table import State
from tornado_idv.keys.ring import KeyOverview
from tornado_idv.metrics.counters import BOUNDS, Durations, sum_buckets
from tornado_idv.web.errors import ApiError

_OPERATIONS = ("url", "card", "batch", "verify")
_FAILURES = {error.code for error in ApiError if error.status >= ApiError.INTERNAL.status}
"""The error codes of responses with a status of 500 or more."""
_RESULTS = {"ok": "found", "not_found": "not_found"}
_CALL_RESULTS = ("found", "not_found", "unavailable", "broken", "rejected", "cancelled")
_LIMITS = ("requests", "misses", "failed_auth")
_REASONS = ("missing", "malformed", "unknown", "expired", "not valid yet", "revoked", "disabled")
LabelsT = TypeVar("LabelsT", bound=str | tuple[str, ...])


def render(report: Report, keys: KeyOverview, accept: str) -> tuple[bytes, str]:
    """Return the metrics and their content type. The header ``Accept`` selects the format."""
    encode, content_type = choose_encoder(accept)
    return encode(_ReportCollector(report, keys)), content_type


@dataclass(frozen=True, eq=False)
class _ReportCollector(Collector):
    """A collector for `prometheus_client`, with the metrics of one `Report`."""

    report: Report
    keys: KeyOverview

    def collect(self) -> Iterator[core.Metric]:
        report = self.report
        yield from self._requests()
        yield from self._backends()
        yield from self._cache()
        for place in filter(None, (each.metrics for each in FEATURES)):
            yield from resolve_name(place)(report)
        yield from self._service()
        yield from _processes({os.getpid(), report.pid, *(each.pid for each in report.workers)})

    def _requests(self) -> Iterator[core.Metric]:
        counters = self.report.counters
        # Always present: Prometheus needs two samples of a series for a rate, and an overload may
        # be shorter.
        counts = Counter({("connection", "overloaded"): 0})
        durations: defaultdict[tuple[str, str], list[Durations]] = defaultdict(list)
        for (route, code), each in counters.responses.items():
            operation = operation_of(route, code)
            counts[operation, code] += each.count
            result = _RESULTS.get(code, "failed" if code in _FAILURES else "rejected")
            durations[operation, result].append(each)
        yield counter("idv_requests", "Responses.", counts, "operation", "code")
        text = "Time from a complete request to its response."
        yield histogram("idv_request_duration_seconds", text, durations, "operation", "result")
        failures = {each.replace(" ", "_"): counters.auth_failures[each] for each in _REASONS}
        yield counter("idv_auth_failures", "Requests with the response 401.", failures, "reason")
        limited = {each: counters.rate_limited[each] for each in _LIMITS}
        yield counter("idv_rate_limited", "Requests with the response 429.", limited, "limit")

    def _backends(self) -> Iterator[core.Metric]:
        backends = self.report.process.backends
        counted = {each.name: self.report.counters.backends[each.name] for each in backends}
        calls = {
            (name, result): each.results[result]
            for name, each in counted.items()
            for result in _CALL_RESULTS
        }
        yield counter("idv_backend_requests", "Calls of backends.", calls, "backend", "outcome")
        text = "Duration of calls of backends."
        durations = {name: [each.durations] for name, each in counted.items()}
        yield histogram("idv_backend_duration_seconds", text, durations, "backend")
        in_flight = {each.name: each.in_flight for each in backends}
        yield gauge("idv_backend_in_flight", "Running calls.", in_flight, "backend")
        states = {each.name: each.breaker for each in backends}
        yield breaker_gauge("idv_breaker_state", states, "backend")
        servers = {(each.name, *server): 1 for each in backends for server in each.servers}
        found = {(each.name, by): int(ok) for each in backends for by, ok in each.canaries.items()}
        text = "Whether the canary was found. A failed lookup does not change the value."
        yield gauge("idv_canary_found", text, found, "backend", "by")
        text = "Servers in use for lookups."
        yield gauge("idv_backend_server", text, servers, "backend", "server", "role")
        users = {each.name: each.users for each in backends if each.users is not None}
        yield gauge("idv_fixture_users", "Users of a backend, if known.", users, "backend")

    def _cache(self) -> Iterator[core.Metric]:
        counters, entries = self.report.counters, self.report.process.cache_entries
        yield gauge("idv_cache_entries", "Entries of the cache.", entries, "kind")
        yield counter("idv_cache_lookups", "Lookups.", counters.cache_lookups, "result")
        text = "Cache entries dropped to make room for others."
        yield counter("idv_cache_evictions", text, {(): counters.evictions})
        refreshes = counters.refreshes
        yield counter("idv_cache_refreshes", "Refreshes ahead of expiry.", refreshes, "result")

    def _service(self) -> Iterator[core.Metric]:
        report, process, counters = self.report, self.report.process, self.report.counters
        text = "Expiry of a key, in Unix time."
        yield gauge("idv_key_expiry_timestamp_seconds", text, self.keys.expirations, "key")
        text = "Longest delay of the event loop since the last scrape."
        yield gauge("idv_event_loop_lag_seconds", text, {(): process.max_lag})
        states = {each.name.lower(): process.connections.get(each.name, 0) for each in State}
        yield gauge("idv_connections", "Open connections of the public listener.", states, "state")
        text = "Maximum connections of the public listener, in all processes."
        yield gauge("idv_connections_limit", text, {(): process.connections_limit})
        yield counter("idv_reloads", "Reloads of the configuration.", counters.reloads, "result")
        text = "Load time of the current configuration, in Unix time."
        loaded = {(): counters.last_reload_success}
        yield gauge("idv_config_last_reload_success_timestamp_seconds", text, loaded)
        failed = report.last_reload is not None and report.last_reload.code is not None
        text = "Whether the last reload was applied; 1 if there was none."
        yield gauge("idv_config_last_reload_successful", text, {(): int(not failed)})
        failing = report.degraded()
        parts = {part: int(part in failing) for part in [*report.parts, *failing]}
        yield gauge("idv_degraded", "Whether a part of the service fails.", parts, "part")
        text = "Restarts of processes that ended unexpectedly."
        yield counter("idv_worker_restarts", text, {(): report.restarts})
        yield counter("idv_log_dropped", "Lost log lines.", {(): counters.log_dropped})
        versions = {
            "version": version("tornado-idv"),
            "python": platform.python_version(),
            "tornado": tornado.version,
        }
        yield core.InfoMetricFamily("idv_build", "Versions.", versions)


def operation_of(route: str, code: str) -> str:
    """Return the metric label ``operation``. ``route`` is ``-`` if no request was parsed."""
    name = route.removeprefix("identify/")
    if name in _OPERATIONS:
        return name
    return "connection" if (route, code) == ("-", "overloaded") else "none"


def _processes(pids: Iterable[int]) -> Iterator[core.Metric]:
    """Yield the usual process metrics, summed over all processes, and the earliest start time."""
    found: defaultdict[str, list[core.Metric]] = defaultdict(list)
    for pid in pids:
        for each in ProcessCollector(pid=partial(int, pid), registry=None).collect():
            found[each.name].append(each)
    for name, metrics in found.items():
        values = [each.samples[0].value for each in metrics]
        kind = counter if metrics[0].type == "counter" else gauge
        total = min(values) if name == "process_start_time_seconds" else sum(values)
        yield kind(name, metrics[0].documentation, {(): total})


def _labelled(
    kind: type[core.CounterMetricFamily | core.GaugeMetricFamily],
    name: str,
    text: str,
    values: Mapping[LabelsT, float],
    *labels: str,
) -> core.Metric:
    """Return a metric. The keys of ``values`` are label values: one string, or a tuple."""
    family = kind(name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(_to_tuple(label_values), value)
    return family


counter = partial(_labelled, core.CounterMetricFamily)
gauge = partial(_labelled, core.GaugeMetricFamily)


def breaker_gauge(name: str, states: Mapping[LabelsT, str], *labels: str) -> core.Metric:
    """Return the states of circuit breakers. The keys of ``states`` are label values."""
    values = {each: BREAKERS.index(state) for each, state in states.items()}
    return gauge(name, "Circuit breaker: 0 closed, 1 half-open, 2 open.", values, *labels)


def histogram(
    name: str, text: str, values: Mapping[LabelsT, list[Durations]], *labels: str
) -> core.Metric:
    """Return a histogram with the sums of durations. The keys of ``values`` are label values."""
    family = core.HistogramMetricFamily(name, text, labels=labels)
    bounds = [*map(str, BOUNDS), "+Inf"]
    for label_values, durations in values.items():
        counts = accumulate(sum_buckets(each.buckets for each in durations))
        family.add_metric(
            _to_tuple(label_values),
            buckets=list(zip(bounds, counts, strict=True)),
            sum_value=sum(each.seconds for each in durations),
        )
    return family


def _to_tuple(label_values: str | tuple[str, ...]) -> tuple[str, ...]:
    return (label_values,) if isinstance(label_values, str) else label_values

"""Reports of processes and backends to the admin listener, their sum, and their JSON records."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import index
from pkgutil import resolve_name
from typing import Any, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from tornado_idv.errors import format_traceback
from tornado_idv.features import FEATURES
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.log_format import format_time
from tornado_idv.lookup.canary import KINDS
from tornado_idv.lookup.circuit_breaker import CircuitBreaker
from tornado_idv.lookup.guard import Guard
from tornado_idv.metrics.counters import Counters, Record

_log = logging.getLogger(__name__)
INVALID = "invalid_configuration"
FAILED = "reload_failed"


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The result of a reload at the Unix time ``at``.

    After success, ``needs_restart`` contains the changed settings that take effect only after a
    restart. After a failure, the old configuration stays effective: ``code`` is `INVALID` or
    `FAILED`, and ``problems`` contains the reasons.
    """

    at: float = field(default_factory=time.time)
    needs_restart: tuple[str, ...] = ()
    code: str | None = None
    problems: tuple[str, ...] = ()


Phase = Literal["starting", "ready", "draining"]
BREAKERS = ("closed", "half_open", "open")
"""States of circuit breakers, the best first."""


class BackendReport(Struct):
    """The report of a backend, or of another source such as the shared cache.

    Times are Unix times. ``failing_since`` is ``None`` after a success. ``users`` is the number of
    users, or ``None`` if unknown. ``problem`` is a problem found by the backend, not by a lookup.
    ``servers`` has addresses and roles of its servers. ``next_probe_s`` is the time until the next
    probe of an open circuit breaker, in seconds. For each kind of query with a canary, ``canaries``
    has the last result: true for a found canary.
    """

    name: str
    kind: str
    breaker: str
    in_flight: int = 0
    users: int | None = None
    failing_since: float | None = None
    last_error: str | None = None
    last_error_at: float = 0.0
    problem: str | None = None
    next_probe_s: float | None = None
    servers: list[tuple[str, str]] = []
    canaries: dict[str, bool] = {}

    @property
    def available(self) -> bool:
        """True if the circuit breaker is closed and no call has failed since the last success."""
        return self.breaker == "closed" and self.failing_since is None


class PartReport(Struct):
    """State of a part of the service. ``error`` is its problem, ``since`` a Unix time.

    ``sources`` are its backends or servers. ``gauges`` are summed over processes.
    """

    error: str | None = None
    since: float = 0.0
    sources: list[BackendReport] = []
    gauges: dict[str, int] = {}


class ProcessReport(Struct):
    """Gauges of one process. ``max_lag`` is in seconds. ``parts`` has only configured parts."""

    backends: list[BackendReport] = []
    cache_entries: dict[str, int] = {}
    connections: dict[str, int] = {}
    connections_limit: int = 0
    parts: dict[str, PartReport] = {}
    max_lag: float = 0.0

    @property
    def sources(self) -> dict[str, BackendReport]:
        """Reports of backends, by "backend NAME", and of the sources of `parts`, by their names."""
        named = {f"backend {each.name}": each for each in self.backends}
        of_parts = chain.from_iterable(each.sources for each in self.parts.values())
        return named | {each.name: each for each in of_parts}


class WorkerReport(Struct):
    """State of a worker, from its supervisor. ``heartbeat_age`` is in seconds."""

    name: str
    pid: int
    phase: Phase
    started_at: float
    requests: int
    heartbeat_age: float


class Report(Struct):
    """The report of a service: of its one process, or summed over its workers.

    Signals go to the process ``pid``. ``missing`` has the names of workers that do not serve.
    ``restarts`` counts restarts of processes that ended unexpectedly.
    """

    phase: Phase
    pid: int
    started_at: float
    process: ProcessReport
    counters: Counters
    workers: list[WorkerReport] = []
    missing: list[str] = []
    restarts: int = 0
    last_reload: ReloadResult | None = None

    @property
    def parts(self) -> list[str]:
        """The names of all parts that may fail, without the workers."""
        parts = (name for name, each in self.process.parts.items() if not each.sources)
        return [*self.process.sources, *parts]

    def degraded(self) -> list[str]:
        """Return the names of failing parts. The service still responds."""
        sources = self.process.sources.items()
        parts = [name for name, each in sources if not each.available or each.problem is not None]
        parts += (name for name, part in self.process.parts.items() if part.error)
        return parts + self.missing


def source_report(
    name: str, kind: str, breaker: CircuitBreaker, counters: Counters, **state: Any
) -> BackendReport:
    """Return the report of the source ``name``. ``state`` are further fields of the report."""
    counted = counters.backends[name]
    return BackendReport(
        name=name,
        kind=kind,
        breaker=breaker.state,
        failing_since=counted.failing_since,
        last_error=counted.last_error,
        last_error_at=counted.last_error_at,
        next_probe_s=round(breaker.next_probe, 1) or None,
        **state,
    )


def guard_report(guard: Guard, counters: Counters) -> BackendReport:
    """Return the report of a guard's backend."""
    users, problem, servers = _read(guard.backend)
    lost = (each.problem for each in guard.canaries.values() if each.problem is not None)
    return source_report(
        guard.name,
        guard.backend.options.kind,
        guard.breaker,
        counters,
        in_flight=guard.in_flight,
        users=users,
        problem=problem or next(lost, None),
        servers=servers,
        canaries={KINDS[kind]: each.found for kind, each in guard.canaries.items()},
    )


def _read(backend: AnyBackend) -> tuple[int | None, str | None, list[tuple[str, str]]]:
    """Return ``user_count``, ``problem`` and ``servers`` of a backend.

    Lookups do not need these values. If reading them fails, the service is degraded, but ready.
    """
    try:
        users, problem = backend.user_count, backend.problem
        servers = [(str(address), str(role)) for address, role in backend.servers]
        return None if users is None else index(users), problem and str(problem), servers
    except Exception as error:  # noqa: BLE001 a plugin may raise anything
        what = "user_count, problem or servers"
        _log.error("backend %s: %s:\n%s", backend.name, what, format_traceback(error))
        return None, f"{what} failed with {type(error).__name__}", []


def merge(reports: Sequence[ProcessReport]) -> ProcessReport:
    """Return the sum of the reports of workers. A problem of one worker is also in the sum."""
    parts: dict[str, list[PartReport]] = {}
    for name, part in chain.from_iterable(each.parts.items() for each in reports):
        parts.setdefault(name, []).append(part)
    return ProcessReport(
        backends=_merge_backends(each.backends for each in reports),
        cache_entries=_sum(each.cache_entries for each in reports),
        connections=_sum(each.connections for each in reports),
        connections_limit=sum(each.connections_limit for each in reports),
        parts={name: _merge_part(each) for name, each in parts.items()},
        max_lag=max((each.max_lag for each in reports), default=0.0),
    )


def _merge_part(reports: Sequence[PartReport]) -> PartReport:
    return replace(
        next((each for each in reports if each.error), reports[0]),
        sources=_merge_backends(each.sources for each in reports),
        gauges=_sum(each.gauges for each in reports),
    )


def _merge_backends(reports: Iterable[list[BackendReport]]) -> list[BackendReport]:
    by_name: dict[str, list[BackendReport]] = {}
    for each in chain.from_iterable(reports):
        by_name.setdefault(each.name, []).append(each)
    return [_merge_backend(each) for each in by_name.values()]


def _merge_backend(reports: Sequence[BackendReport]) -> BackendReport:
    latest = max(reports, key=lambda each: each.last_error_at)
    failing = [each.failing_since for each in reports if each.failing_since is not None]
    probes = [each.next_probe_s for each in reports if each.next_probe_s is not None]
    return replace(
        latest,
        breaker=max((each.breaker for each in reports), key=BREAKERS.index),
        in_flight=sum(each.in_flight for each in reports),
        failing_since=min(failing, default=None),
        problem=next((each.problem for each in reports if each.problem is not None), None),
        next_probe_s=min(probes, default=None),
        servers=sorted({server for each in reports for server in each.servers}),
        canaries={
            kind: all(each.canaries.get(kind, True) for each in reports) for kind in latest.canaries
        },
    )


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def health(report: Report, *, verbose: bool) -> Record:
    """Return the record of ``/health/ready``. Failing backends make it "degraded", not unready."""
    degraded = report.degraded()
    state = "degraded" if report.phase == "ready" and degraded else report.phase
    record: Record = {"status": state, "degraded": degraded}
    if verbose:
        counted = report.counters
        record["backends"] = [source_record(each, counted) for each in report.process.backends]
        for place in filter(None, (each.status for each in FEATURES)):
            record |= resolve_name(place)(report)
        for name in ("key store", "unix sockets"):
            record[name.replace(" ", "_")] = part_record(report.process.parts.get(name))
    return record


def source_record(backend: BackendReport, counters: Counters) -> Record:
    """Return the record of a backend, or of another source."""
    return {
        **to_builtins(backend),
        "available": backend.available,
        "failing_since": _time_or_none(backend.failing_since),
        "last_error_at": _time_or_none(backend.last_error_at or None),
        "servers": [{"server": server, "role": role} for server, role in backend.servers],
        "calls": dict(counters.backends[backend.name].results),
    }


def part_record(part: PartReport | None) -> Record | None:
    """Return the record of a part, or ``None`` if the part is not configured."""
    return {"error": part.error, "since": format_time(part.since)} if part else None


def _time_or_none(seconds: float | None) -> str | None:
    return None if seconds is None else format_time(seconds)

"""Reports of backends, and of other sources such as the shared cache."""

import logging
from operator import index
from typing import Any

from tornado_idv.admin.report import BackendReport
from tornado_idv.errors import format_traceback
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.lookup.canary import KINDS
from tornado_idv.lookup.circuit_breaker import CircuitBreaker
from tornado_idv.lookup.guard import Guard
from tornado_idv.metrics.counters import Counters

_log = logging.getLogger(__name__)


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

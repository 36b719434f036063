"""The record of ``/health/ready``, and its parts."""

from pkgutil import resolve_name

from msgspec import to_builtins

from tornado_idv.admin.operations import Record
from tornado_idv.admin.report import BackendReport, PartReport, Report
from tornado_idv.features import FEATURES
from tornado_idv.log_format import format_time
from tornado_idv.metrics.counters import Counters
from tornado_idv.web.errors import ApiError

_OPERATIONS = ("url", "card", "batch", "verify")
FAILURES = {error.code for error in ApiError if error.status >= ApiError.INTERNAL.status}
"""The error codes of responses with a status of 500 or more."""


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


def operation_of(route: str, code: str) -> str:
    """Return the metric label ``operation``. ``route`` is ``-`` if no request was parsed."""
    name = route.removeprefix("identify/")
    if name in _OPERATIONS:
        return name
    return "connection" if (route, code) == ("-", "overloaded") else "none"


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

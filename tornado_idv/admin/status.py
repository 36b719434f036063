"""The records of ``/health/ready`` and ``/status.json``."""

from __future__ import annotations

import time
from functools import cache, partial
from importlib.metadata import version
from pkgutil import resolve_name

from msgspec import to_builtins

from tornado_idv.admin.operations import Record
from tornado_idv.admin.report import BackendReport, PartReport, Report
from tornado_idv.features import FEATURES
from tornado_idv.keys.ring import KeyOverview
from tornado_idv.log_format import format_time
from tornado_idv.metrics.counters import Counters

_OPERATIONS = ("url", "card", "batch", "verify")
FAILURES = ("backend_unavailable", "internal", "overloaded")
"""The error codes of responses with a status of 500 or more."""
_SOON = 14 * 86400.0
"""In this number of seconds before its expiry, a key is listed as expiring soon."""
_MAX_EXPIRING = 20
_own_version = cache(partial(version, "tornado-idv"))  # reads a file


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


def status(report: Report, keys: KeyOverview) -> Record:
    """Return the record of ``/status.json``, an overview for the operator."""
    counters, now, last = report.counters, time.time(), report.last_reload
    record = {
        **health(report, verbose=True),
        "version": _own_version(),
        "pid": report.pid,
        "started_at": format_time(report.started_at),
        "uptime_s": round(now - report.started_at, 1),
        "requests": _requests(counters),
        "cache": {
            "entries": report.process.cache_entries,
            "lookups": cache_lookups(counters),
            "evictions": counters.evictions,
            "refreshes": dict(counters.refreshes),
        },
        "connections": report.process.connections,
        "keys": _keys(keys, now),
        "log_dropped": counters.log_dropped,
        "last_reload": last
        and {
            "time": format_time(last.at),
            "result": "failed" if last.code else "ok",
            "problem": last.problems[0] if last.problems else None,
            "needs_restart": list(last.needs_restart),
        },
    }
    if report.workers:
        record["workers"] = [
            {
                **to_builtins(each),
                "started_at": format_time(each.started_at),
                "uptime_s": round(now - each.started_at, 1),
            }
            for each in report.workers
        ]
        record["worker_restarts"] = report.restarts
    return record


def operation_of(route: str, code: str) -> str:
    """Return the metric label ``operation``. ``route`` is ``-`` if no request was parsed."""
    name = route.removeprefix("identify/")
    if name in _OPERATIONS:
        return name
    return "connection" if (route, code) == ("-", "overloaded") else "none"


def cache_lookups(counters: Counters) -> dict[str, int]:
    """Return the number of lookups by result of the cache."""
    counted = counters.cache_lookups
    return {word: counted.get(word, 0) for word in ("hit", "shared", "stale", "coalesced", "miss")}


def _requests(counters: Counters) -> dict[str, dict[str, int]]:
    requests: dict[str, dict[str, int]] = {}
    for (route, code), durations in counters.responses.items():
        of_operation = requests.setdefault(operation_of(route, code), {})
        of_operation[code] = of_operation.get(code, 0) + durations.count
    return requests


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


def _keys(keys: KeyOverview, now: float) -> Record:
    expiring = [each for each in keys.expirations.items() if each[1] > now][:_MAX_EXPIRING]
    return {
        "count": keys.count,
        "next_expiry": _time_or_none(expiring[0][1] if expiring else None),
        "expiring": [
            {"id": key_id, "expires": format_time(at)}
            for key_id, at in expiring
            if at < now + _SOON
        ],
    }


def _time_or_none(seconds: float | None) -> str | None:
    return None if seconds is None else format_time(seconds)

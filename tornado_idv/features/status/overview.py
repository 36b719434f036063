"""The record of ``/status.json``."""

import time
from functools import cache, partial
from importlib.metadata import version

from msgspec import to_builtins

from tornado_idv.admin.health import health, operation_of
from tornado_idv.admin.operations import Record
from tornado_idv.admin.report import Report
from tornado_idv.keys.ring import KeyOverview
from tornado_idv.log_format import format_time
from tornado_idv.metrics.counters import Counters

_SOON = 14 * 86400.0
"""In this number of seconds before its expiry, a key is listed as expiring soon."""
_MAX_EXPIRING = 20
_own_version = cache(partial(version, "tornado-idv"))  # reads a file


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
            "lookups": dict(counters.cache_lookups),
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


def _requests(counters: Counters) -> dict[str, dict[str, int]]:
    requests: dict[str, dict[str, int]] = {}
    for (route, code), durations in counters.responses.items():
        of_operation = requests.setdefault(operation_of(route, code), {})
        of_operation[code] = of_operation.get(code, 0) + durations.count
    return requests


def _keys(keys: KeyOverview, now: float) -> Record:
    expiring = [each for each in keys.expirations.items() if each[1] > now][:_MAX_EXPIRING]
    return {
        "count": keys.count,
        "next_expiry": format_time(expiring[0][1]) if expiring else None,
        "expiring": [
            {"id": key_id, "expires": format_time(at)}
            for key_id, at in expiring
            if at < now + _SOON
        ],
    }

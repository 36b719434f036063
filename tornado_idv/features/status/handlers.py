"""The handlers of the status page and its files, and the record of ``/status.json``."""

import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from msgspec import to_builtins

from tornado_idv.admin.listener import AdminHandler
from tornado_idv.admin.metrics import operation_of
from tornado_idv.admin.operations import Operations, Record
from tornado_idv.admin.report import Report, health
from tornado_idv.features.status.history import INTERVAL, WINDOW, History, sampled
from tornado_idv.keys.ring import KeyOverview
from tornado_idv.log_format import format_time
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.service import ServiceInfo

_VERSION = version("tornado-idv")
_STATIC = files(__package__) / "static"
_read = cache(lambda name: (_STATIC / name).read_bytes())
_TYPES = {".js": "text/javascript", ".css": "text/css"}
_SOON = 14 * 86400.0
"""In this number of seconds before its expiry, a key is listed as expiring soon."""
_MAX_EXPIRING = 20
_POLICY = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class StatusHandler(AdminHandler):
    """Responds with the status of the service, the last sample, and latencies of backends."""

    async def get(self) -> None:
        history: History = self.settings["history"]
        record = status(await self.operations.report(), await self.operations.ring.overview())
        record["recent"] = history.latest
        shared = [record["shared_cache"]] if record.get("shared_cache") else []
        for each in record["backends"] + shared:
            each["latency_ms"] = history.backend_latency(each["name"])
        self.send(record)


def status(report: Report, keys: KeyOverview) -> Record:
    """Return the record of ``/status.json``, an overview for the operator."""
    counters, now, last = report.counters, time.time(), report.last_reload
    record = {
        **health(report, verbose=True),
        "version": _VERSION,
        "pid": report.pid,
        **_uptime(report.started_at, now),
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
            {**to_builtins(each), **_uptime(each.started_at, now)} for each in report.workers
        ]
        record["worker_restarts"] = report.restarts
    return record


def _uptime(started_at: float, now: float) -> Record:
    return {"started_at": format_time(started_at), "uptime_s": round(now - started_at, 1)}


def _requests(counters: Counters) -> Mapping[str, Mapping[str, int]]:
    requests = defaultdict[str, Counter[str]](Counter)
    for (route, code), durations in counters.responses.items():
        requests[operation_of(route, code)][code] += durations.count
    return requests


def _keys(keys: KeyOverview, now: float) -> Record:
    expiring = [each for each in keys.expirations.items() if each[1] > now][:_MAX_EXPIRING]
    soon = [each for each in expiring if each[1] < now + _SOON]
    return {
        "count": keys.count,
        "next_expiry": format_time(expiring[0][1]) if expiring else None,
        "expiring": [{"id": key_id, "expires": format_time(at)} for key_id, at in soon],
    }


class HistoryHandler(AdminHandler):
    """Responds with the samples of the last 15 minutes."""

    async def get(self) -> None:
        history: History = self.settings["history"]
        self.send({"interval_s": INTERVAL, "window_s": WINDOW, "samples": history.columns()})


class PageHandler(AdminHandler):
    """Responds with the status page. A nonce per response blocks injected scripts and styles."""

    has_data = False

    async def get(self) -> None:
        nonce = secrets.token_urlsafe(16)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", _POLICY.format(nonce))
        self.set_header("Referrer-Policy", "no-referrer")
        self.finish(_read("status.html").decode().replace("{nonce}", nonce))


class PageFileHandler(AdminHandler):
    """Responds with a script or style sheet of the status page."""

    has_data = False

    async def get(self) -> None:
        name = self.request.path.rpartition("/")[2]
        suffix = name[name.rindex(".") :]
        self.set_header("Content-Type", f"{_TYPES[suffix]}; charset=utf-8")
        self.finish(_read(name))


ROUTES: dict[str, type[AdminHandler]] = {
    "/": PageHandler,
    "/status": PageHandler,
    "/status.json": StatusHandler,
    "/status/history.json": HistoryHandler,
}
FILE_ROUTES: dict[str, type[AdminHandler]] = {
    f"/status/{each.name}": PageFileHandler
    for each in _STATIC.iterdir()
    if each.name.endswith((".js", ".css"))
}


@asynccontextmanager
async def admin_routes(
    operations: Operations, settings: dict[str, Any]
) -> AsyncIterator[dict[str, type[AdminHandler]]]:
    """Yield the routes of the status page. Sample the service until the context ends."""
    async with sampled(operations) as history:
        settings["history"] = history
        yield ROUTES | FILE_ROUTES


def announce(_settings: object, service: ServiceInfo) -> Iterator[str]:
    """Yield a line with the URL of the status page, or none without an admin listener."""
    if service.admin_url is not None:
        yield f"Status page: {service.admin_url}/status"

"""The handlers of the status page, its files and its data, and the line with its URL."""

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import Any

from tornado_idv.admin.listener import AdminHandler
from tornado_idv.admin.operations import Operations
from tornado_idv.features.status.history import INTERVAL, WINDOW, History, sampled
from tornado_idv.features.status.overview import status
from tornado_idv.service.service import ServiceInfo

_STATIC = files(__package__) / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css"}
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


class HistoryHandler(AdminHandler):
    """Responds with the samples of the last 15 minutes."""

    async def get(self) -> None:
        history: History = self.settings["history"]
        columns = history.columns()
        self.send({"interval_s": INTERVAL, "window_s": WINDOW, "samples": columns})


class PageHandler(AdminHandler):
    """Responds with the status page. A nonce per response blocks injected scripts and styles."""

    has_data = False

    async def get(self) -> None:
        nonce = secrets.token_urlsafe(16)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", _POLICY.format(nonce))
        self.set_header("Referrer-Policy", "no-referrer")
        self.finish(_read("status.html").replace("{nonce}", nonce))


class PageFileHandler(AdminHandler):
    """Responds with a script or style sheet of the status page."""

    has_data = False

    async def get(self) -> None:
        name = self.request.path.rpartition("/")[2]
        suffix = name[name.rindex(".") :]
        self.set_header("Content-Type", f"{_TYPES[suffix]}; charset=utf-8")
        self.finish(_read(name))


@cache
def _read(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


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

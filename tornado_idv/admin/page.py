"""The status page: a skeleton without data, and the files that fill it."""

from __future__ import annotations

import secrets
from functools import cache
from importlib.resources import files

from tornado_idv.admin.handler import AdminHandler

_TYPES = {".js": "text/javascript", ".css": "text/css"}
PAGE_FILES = (
    "status.css",
    "status.js",
    "api.js",
    "charts.js",
    "explain.js",
    "format.js",
    "panels.js",
    "problems.js",
    "uPlot.iife.min.js",
    "uPlot.min.css",
)
_POLICY = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageHandler(AdminHandler):
    """The page; a new nonce for each response keeps any other script and style from running."""

    has_data = False

    async def get(self) -> None:
        nonce = secrets.token_urlsafe(16)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", _POLICY.format(nonce))
        self.set_header("Referrer-Policy", "no-referrer")
        self.finish(_read("status.html").replace("{nonce}", nonce))


class RootHandler(AdminHandler):
    """Leads to the page; a relative reference, since a proxy may add a prefix to the path."""

    has_data = False

    async def get(self) -> None:
        self.redirect("status")


class PageFileHandler(AdminHandler):
    """The scripts and styles of the page."""

    has_data = False

    async def get(self) -> None:
        name = self.request.path.rpartition("/")[2]
        suffix = name[name.rindex(".") :]
        self.set_header("Content-Type", f"{_TYPES[suffix]}; charset=utf-8")
        self.finish(_read(name))


@cache
def _read(name: str) -> str:
    return (files("tornado_idv.admin") / "static" / name).read_text(encoding="utf-8")

"""The OpenAPI document, and a page for people that shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files

from msgspec import Struct

from tornado_idv.config.settings import Settings
from tornado_idv.features.docs.openapi import describe_api
from tornado_idv.web.handler import ApiHandler, NoSuchRouteHandler

_PAGE_FILES = {
    "docs": ("docs.html", "text/html"),
    "docs/docs.css": ("docs.css", "text/css"),
    "docs/docs.js": ("docs.js", "text/javascript"),
    "docs/examples.js": ("examples.js", "text/javascript"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class File(Struct, frozen=True):
    """A response that is the same for everybody."""

    content: bytes
    media_type: str


def make_docs(settings: Settings) -> Mapping[str, File]:
    """Return the document and the files of the page by their paths below ``base_path``."""
    document = json.dumps(describe_api(settings), separators=(",", ":")).encode()
    static = files("tornado_idv.features.docs") / "static"
    return {
        "openapi.json": File(document, "application/json"),
        **{
            path: File((static / name).read_bytes(), f"{media_type}; charset=utf-8")
            for path, (name, media_type) in _PAGE_FILES.items()
        },
    }


class RootHandler(NoSuchRouteHandler):
    """Leads a browser to the page; for others there is no such route."""

    def get(self) -> None:
        if self.request.method == "GET" and "text/html" in self.request.headers.get("Accept", ""):
            self.redirect("docs")
        else:
            super().get()


class FileHandler(ApiHandler):
    """Responds with a file, one of the application's setting ``files``; no key is needed."""

    route = "docs"

    def get(self) -> None:
        file: File = self.application.settings["files"][self.request.path]
        self.set_header("Content-Type", file.media_type)
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("Referrer-Policy", "no-referrer")
        self.finish(file.content)

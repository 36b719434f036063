"""The routes of the OpenAPI document, and of a page that shows it in a browser."""

import json
from collections.abc import Iterator
from importlib.resources import files

from tornado_idv.config.settings import Settings
from tornado_idv.features.docs.openapi import describe_api
from tornado_idv.features.docs.options import DocsOptions
from tornado_idv.options import as_type
from tornado_idv.service.service import ServiceInfo
from tornado_idv.web.app import Route
from tornado_idv.web.handler import ApiHandler, NoSuchRouteHandler
from tornado_idv.web.lookups import ApiContext

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


def make_routes(settings: Settings, _before: object) -> Iterator[Route]:
    """If ``server.docs`` is on, yield the routes of the OpenAPI document and its page."""
    if not as_type(settings.server, DocsOptions).docs:
        return
    document = json.dumps(describe_api(settings), separators=(",", ":")).encode()
    static = files("tornado_idv.features.docs") / "static"
    yield Route("/", RootHandler)
    yield _file("openapi.json", document, "application/json")
    for path, (name, media_type) in _PAGE_FILES.items():
        yield _file(path, (static / name).read_bytes(), f"{media_type}; charset=utf-8")


def announce(settings: Settings, service: ServiceInfo) -> Iterator[str]:
    """If ``server.docs`` is on and the service has a port, yield a line with the page's URL."""
    if as_type(settings.server, DocsOptions).docs and service.port:
        yield f"API documentation: {service.url}{settings.server.base_path}/docs"


def _file(path: str, content: bytes, media_type: str) -> Route:
    return Route(f"/{path}", FileHandler, {"content": content, "media_type": media_type})


class RootHandler(NoSuchRouteHandler):
    """Redirects browsers from ``/`` to the page ``/docs``. Other clients get 404."""

    def get(self) -> None:
        if self.request.method == "GET" and "text/html" in self.request.headers.get("Accept", ""):
            self.redirect("docs")
        else:
            super().get()


class FileHandler(ApiHandler):
    """Responds with the OpenAPI document, or with a file of ``/docs``. Clients need no key."""

    route = "docs"

    def initialize(self, api: ApiContext, content: bytes = b"", media_type: str = "") -> None:
        super().initialize(api)
        self._content, self._media_type = content, media_type

    def get(self) -> None:
        self.set_header("Content-Type", self._media_type)
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("Referrer-Policy", "no-referrer")
        self.finish(self._content)

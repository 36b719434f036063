"""The routes of the test double, in place of those that look users up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pkgutil import resolve_name

from tornado_idv.config.settings import Settings
from tornado_idv.web.app import Route

_HANDLERS = {
    "identify/url": "tornado_idv.features.double.handlers:DoubleUrlHandler",
    "identify/card": "tornado_idv.features.double.handlers:DoubleCardHandler",
    "identify/batch": "tornado_idv.features.double.batch:DoubleBatchHandler",
    "verify": "tornado_idv.features.double.verify:DoubleVerifyHandler",
}
"""Handlers by the name of the route whose place they take."""


def make_routes(settings: Settings, before: Iterable[Route]) -> Iterator[Route]:
    """Yield the routes with handlers of the double, in demo mode."""
    for each in before if settings.demo else ():
        if each.handler.route in _HANDLERS:
            yield each._replace(handler=resolve_name(_HANDLERS[each.handler.route]))

"""The routes of the test double, in place of those that look users up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tornado_idv.config.settings import Settings
from tornado_idv.web.app import Route


def make_routes(settings: Settings, before: Iterable[Route]) -> Iterator[Route]:
    """Yield the routes of the core and of other features with faults, in demo mode."""
    if settings.demo:
        from tornado_idv.features.double.handlers import failing  # noqa: PLC0415 - demos are few

        for each in before:
            yield each._replace(handler=failing(each.handler))

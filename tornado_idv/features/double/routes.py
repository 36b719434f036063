"""The routes of the test double. They replace the lookup routes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tornado_idv.config.settings import Settings
from tornado_idv.web.app import Route


def make_routes(settings: Settings, before: Iterable[Route]) -> Iterator[Route]:
    """In demo mode, yield the routes defined so far, with handlers that simulate faults."""
    if settings.demo:
        from tornado_idv.features.double.handlers import failing  # noqa: PLC0415 - for demos only

        for each in before:
            yield each._replace(handler=failing(each.handler))

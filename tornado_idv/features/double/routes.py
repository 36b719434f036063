"""The routes of the test double, as replacements of the lookup routes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tornado_idv.config.settings import Settings
from tornado_idv.web.app import Route


def make_routes(settings: Settings, before: Iterable[Route]) -> Iterator[Route]:
    """Yield all routes again, with the faults of the double. Outside of demo mode, yield none."""
    if settings.demo:
        from tornado_idv.features.double.handlers import failing  # noqa: PLC0415 - demos are few

        for each in before:
            yield each._replace(handler=failing(each.handler))

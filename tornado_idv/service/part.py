"""A part of the service: it has a state of its own, and follows the configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pluggy

from tornado_idv.admin.report import PartReport
from tornado_idv.config.settings import Settings
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.directory import Directory, Layer
from tornado_idv.metrics.counters import Counters
from tornado_idv.web.access_log import RequestLog


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared change: its resources are open, and not used yet (see `Service.prepare`).

    Only one at a time may be prepared, and it must be committed or aborted once. ``commit`` applies
    it in one step of the event loop, to every request that begins from then on, and cannot fail.
    ``abort`` closes what was opened for it; all stays as it is.
    """

    commit: Callable[[], object]
    abort: Callable[[], Awaitable[None]] = _nothing


@dataclass(frozen=True, slots=True)
class Running:
    """Things that all parts of a service use; ``settings`` are those of its start."""

    settings: Settings
    manager: pluggy.PluginManager
    counters: Counters


class Part:
    """A part of a service that runs; by default it does nothing. ``name`` is that in reports."""

    name: str

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Hold open what is needed before the first directory, and until the last one is closed."""
        yield

    def log_before(self, log: RequestLog | None) -> RequestLog | None:
        """Return the record of requests before this one, which it goes on to; itself by default."""
        return log

    async def layer(self, settings: Settings, cache: AnswerCache) -> Layer | None:  # noqa: ARG002
        """Return the layer of lookups past this cache, by these settings, before the backends."""
        return None

    async def prepare(self, settings: Settings, directory: Directory) -> Prepared:  # noqa: ARG002
        """Prepare for these settings, of which ``directory`` is about to be in force.

        It may be the one in force now. Raises `StartError`.
        """
        return Prepared(lambda: None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do what is to be done while a directory is in force, from the first commit on."""
        yield

    def report(self) -> PartReport | None:
        """Return the state of the part, ``None`` if it is not configured."""
        return None

    async def purged(self) -> bool:
        """Wait until the last purge of an operator has reached what this part keeps.

        Return whether it has reached other services, too. Raises `OperationFailed` if it has not
        reached this one.
        """
        return True

"""The base class for parts of the service: objects with state that a reload can change."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pluggy

from tornado_idv.admin.report import PartReport
from tornado_idv.config.settings import Settings
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.directory import Directory, Layer
from tornado_idv.metrics.counters import Counters
from tornado_idv.web.access_log import RequestLog

Commit = Callable[[], object]
"""Applies a change in one step of the event loop, to all later requests. It cannot fail."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared change: its resources are open, but not used yet (see `Service.prepare`).

    Only one change at a time may be prepared. It must be committed or aborted once. ``abort``
    closes its resources and changes nothing else.
    """

    commit: Commit
    abort: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Running:
    """The objects that all parts of a service use. ``settings`` are the settings at the start."""

    settings: Settings
    manager: pluggy.PluginManager
    counters: Counters


class Part:
    """A part of a running service. By default it does nothing. ``name`` is its name in reports."""

    name: str

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Hold resources open, from before the first `Directory` opens until the last is closed."""
        yield

    def log_before(self, log: RequestLog | None) -> RequestLog | None:
        """Return ``log``, or a request log that passes each request on to ``log``."""
        return log

    async def layer(self, settings: Settings, cache: AnswerCache) -> Layer | None:  # noqa: ARG002
        """Return the part's layer between ``cache`` and the backends, or ``None`` for no layer."""
        return None

    async def prepare(self, settings: Settings, directory: Directory) -> Commit:  # noqa: ARG002
        """Return the commit of a change to these settings. It may never be called: open nothing.

        The change will use ``directory``, a new directory or the current one.
        """
        return lambda: None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the part's background work, from the first commit until the service stops."""
        yield

    def report(self) -> PartReport | None:
        """Return the state of the part, ``None`` if it is not configured."""
        return None

    async def purged(self) -> bool:
        """Wait until the last purge has removed cached answers from this part, too.

        Returns false if the purge has not reached the other services with the same shared cache.
        Raises `OperationFailed` if this service may still use purged answers.
        """
        return True


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``work`` as a task, and cancel the task at the end of the context."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])

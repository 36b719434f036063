"""Directories in front of a shared cache."""

import asyncio
from typing import Any

from support.fakes.clock_and_backends import FakeBackend, Ticker, steady_cache
from support.fakes.directories import encode
from tornado_idv.features.shared_cache.part import SharedAnswers
from tornado_idv.features.shared_cache.tier import SharedTier
from tornado_idv.interfaces.shared import Purge, SharedCache, SharedCacheOptions, SharedResult
from tornado_idv.lookup.cache import CacheLimits
from tornado_idv.lookup.directory import Directory
from tornado_idv.model import Query
from tornado_idv.registry import plugin_manager


class FakeSharedCache(SharedCache[SharedCacheOptions]):
    """Keeps entries in this process; ``error`` is raised by every call while it is set."""

    def __init__(self) -> None:
        super().__init__(SharedCacheOptions(kind="fake", timeout=0.05))
        self.generation = 1
        self.entries: dict[tuple[str, Query], SharedResult] = {}
        self.error: BaseException | None = None
        self.calls = 0
        self.purges: list[Purge] = []

    def _call(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error

    async def get(self, scope: str, query: Query) -> SharedResult:
        self._call()
        present = str(self.generation)
        found = self.entries.get((scope, query), SharedResult(""))
        return SharedResult(present, found.answer if found.generation == present else None)

    async def put(self, scope: str, query: Query, result: SharedResult) -> None:
        self._call()
        self.entries[scope, query] = result

    async def purge(self, purge: Purge) -> None:
        self._call()
        await asyncio.sleep(0)
        self.generation += 1
        self.purges.append(purge)


def shared_directory(
    tier: SharedTier, *backends: FakeBackend, ticker: Ticker | None = None, **options: Any
) -> Directory:
    """A directory with its own answer cache, in front of a shared one."""
    limits = CacheLimits(ttl=300, negative_ttl=30, stale_if_error=600, failure_memo=0)
    cache = steady_cache(limits, ticker)
    names = [backend.name for backend in backends]
    accepts = options.pop("accepts", lambda user: True)
    shared = SharedAnswers(
        tier, options.pop("scope", ""), cache, names, encode=encode, accepts=accepts
    )
    manager = plugin_manager(entry_points=False)
    return Directory(manager, backends, cache, encode, accepts=accepts, layers=[shared], **options)

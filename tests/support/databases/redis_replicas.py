"""Replicas of a service, as directories over the shared cache in one Redis server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from idv_redis.options import RedisCacheOptions
from idv_redis.shared_cache import RedisSharedCache
from support.databases.redis_server import RedisServer
from support.databases.shared_caches import shared_directory
from support.fakes.clock_and_backends import FakeBackend
from support.fakes.directories import ALICE, QUERY
from support.http.http_server import until
from tornado_idv import Purge, Query
from tornado_idv.features.shared_cache.tier import SharedTier
from tornado_idv.lookup.directory import Directory

SECRET = "canary" * 8


class Replica:
    def __init__(self, server: RedisServer, **options: Any) -> None:
        given = {"kind": "redis", "url": server.url, "secret": SECRET, "timeout": "1s", **options}
        self.cache = RedisSharedCache(RedisCacheOptions.model_validate(given))
        self.tier = SharedTier(self.cache)
        self.backend = FakeBackend(ALICE)
        self.directory: Directory = shared_directory(self.tier, self.backend)
        self.purges: list[Purge] = []
        self.cache.on_purge(self._purged)

    def _purged(self, purge: Purge) -> None:
        self.purges.append(purge)
        self.directory.cache.apply(purge)

    async def find(self, query: Query = QUERY) -> str:
        answer = await self.directory.find(query)
        while self.tier.tasks:
            await asyncio.wait(self.tier.tasks)
        return answer.user.plan if answer.user else "not found"

    async def find_shared(self, query: Query = QUERY) -> str:
        self.directory.cache.apply(Purge())
        return await self.find(query)

    async def purge(self, purge: Purge) -> None:
        """Purge, and wait until the server has the purge, also if the first attempt fails."""
        self.directory.purge(purge)
        await until(lambda: not self.tier.pending_purges)

    async def wait_for(self, purge: Purge) -> None:
        """Wait until a purge has been received, or, after a lost connection, one of everything."""
        await until(lambda: purge in self.purges or Purge() in self.purges)


@asynccontextmanager
async def replicas(server: RedisServer, **options: Any) -> AsyncIterator[tuple[Replica, Replica]]:
    """Run two replicas, the second with these options."""
    both = Replica(server), Replica(server, **options)
    for each in both:
        await each.cache.open()
    try:
        if server.process is not None:
            for each in both:
                await each.wait_for(Purge())
                each.purges.clear()
        yield both
    finally:
        for each in both:
            await each.tier.close()

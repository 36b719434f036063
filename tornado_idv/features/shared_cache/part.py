"""The part of the service with the shared cache. A reload does not replace the part."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from tornado_idv.admin.report import PartReport, source_report
from tornado_idv.config.settings import Settings
from tornado_idv.features.shared_cache.answers import SharedAnswers
from tornado_idv.features.shared_cache.tier import NAME, SharedTier
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.source_identity import sealed
from tornado_idv.registry import installed_kinds, load_class
from tornado_idv.service.directories import scope_of
from tornado_idv.service.part import Part, Running
from tornado_idv.web.json_body import encode_user


def make_part(running: Running) -> "SharedCachePart | None":
    """Return the part for the configured shared cache, or ``None`` without one."""
    options = running.settings.shared_cache
    if options is None:
        return None
    cache = load_class(installed_kinds(running.manager).shared_caches[options.kind])(options)
    return SharedCachePart(SharedTier(cache, running.counters), running)


class SharedCachePart(Part):
    """The part that adds the shared cache to lookups, between the cache and the backends."""

    name = NAME

    def __init__(self, tier: SharedTier, running: Running) -> None:
        self._tier = tier
        self._counters = running.counters

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the shared cache before the directories, and close it after them."""
        await self._tier.open()
        try:
            yield
        finally:
            await self._tier.close()

    async def layer(self, settings: Settings, cache: AnswerCache) -> SharedAnswers:
        """Return the layer for lookups that miss the local cache ``cache``."""
        identifiers = settings.make_identifiers()
        return SharedAnswers(
            self._tier,
            await asyncio.to_thread(sealed, scope_of(settings)),
            cache,
            [each.name for each in settings.served],
            encode=partial(encode_user, identifiers=identifiers),
            accepts=identifiers.accepts,
        )

    def report(self) -> PartReport:
        """Return the state of the shared cache, with the number of undelivered purges."""
        tier = self._tier
        source = source_report(
            NAME,
            tier.cache.options.kind,
            tier.breaker,
            self._counters,
            in_flight=tier.in_flight,
            problem=tier.problem,
        )
        return PartReport(sources=[source], gauges={"pending_purges": tier.pending_purges})

    async def purged(self) -> bool:
        """Wait up to 1 s until the shared cache has received all purges. Return whether it has."""
        return await self._tier.wait_until_purged()

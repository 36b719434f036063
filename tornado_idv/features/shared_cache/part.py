"""The shared cache as a part of the service, and as a layer of lookups.

Answers are read before a lookup, and stored after it. A reload replaces the layer, not the part.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from tornado_idv.admin.report import PartReport, source_report
from tornado_idv.config.settings import Settings
from tornado_idv.features.shared_cache.tier import NAME, SharedTier
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.single_flight import LookUp
from tornado_idv.lookup.source_identity import sealed
from tornado_idv.model import Answer, Query, SharedAnswer, User
from tornado_idv.registry import installed_kinds, load_class
from tornado_idv.service.directories import scope_of
from tornado_idv.service.part import Part, Running
from tornado_idv.web.json_body import encode_user


@dataclass(slots=True, eq=False)
class SharedAnswers:
    """The layer for the lookups of one directory, between its ``cache`` and its ``backends``.

    ``scope`` identifies the directory's answers in the `SharedCache`. ``encode`` returns the
    response body for a user, and ``accepts`` returns whether a user is valid.
    """

    tier: SharedTier
    scope: str
    cache: AnswerCache
    backends: Collection[str]
    encode: Callable[[User | None], bytes]
    accepts: Callable[[User], bool]

    async def look_up(self, query: Query, min_ttl: float, proceed: LookUp) -> Answer:
        """Return a shared answer with a TTL above ``min_ttl`` s, or else look up with ``proceed``.

        A stale shared answer is stored in the local cache, to be served if the backends fail.
        """
        started, purges = self.cache.timer(), self.cache.purges
        result = await self.tier.get(self.scope, query)
        if result is None:
            return await proceed(query, min_ttl)
        # If there was a purge during the read, it may have removed this answer.
        fresh = self._use(query, result.answer, min_ttl, may_keep=purges == self.cache.purges)
        counted = self.tier.counted
        counted.results["miss" if fresh is None else "hit"] += 1
        counted.failing_since = None
        counted.durations.add(self.cache.timer() - started)
        if fresh is not None:
            return fresh
        answer = await proceed(query, min_ttl)
        if not answer.degraded:
            self.tier.put(self.scope, query, result._replace(answer=self._to_shared(answer)))
        return answer

    def purge(self, purge: Purge) -> None:
        """Purge answers in the shared cache, and in the caches of all processes."""
        self.tier.purge(purge)

    def follow(self) -> None:
        """Apply purges by other processes to the cache of this directory from now on."""
        self.tier.follow(self.cache)

    def _use(
        self, query: Query, shared: SharedAnswer | None, min_ttl: float, *, may_keep: bool
    ) -> Answer | None:
        """Return a shared answer with a TTL above ``min_ttl`` s. Put a stale one into `cache`."""
        if shared is None:
            return None
        user = shared.user
        # The store must not have mixed up the answers of several queries or directories.
        if user is not None and not (
            query.text in (f"@{user.nickname}", user.card_number)
            and shared.backend in self.backends
            and self.accepts(user)
        ):
            return None
        now = self.tier.clock()
        ttl = shared.fresh_until - now
        if ttl > min_ttl:
            return self._to_answer(shared, ttl)
        if may_keep and user is not None and shared.stale_until > now:
            stale = self._to_answer(shared, 0.0)
            lifetime = min(shared.stale_until - now, self.cache.limits.stale_if_error)
            self.cache.keep_stale(query, stale, lifetime)
        return None

    def _to_answer(self, shared: SharedAnswer, ttl: float) -> Answer:
        user, limits = shared.user, self.cache.limits
        # The clock of the writing machine may be ahead, so the limits of this cache apply as well.
        ttl = min(ttl, limits.negative_ttl if user is None else limits.ttl)
        body = self.encode(user)
        return Answer(user, shared.backend, self.cache.timer(), body, ttl=ttl, shared=True)

    def _to_shared(self, answer: Answer) -> SharedAnswer:
        """Convert an answer to a `SharedAnswer` for the shared cache.

        If the answer must not be stored, return an expired answer without content. In the shared
        cache, it replaces an older answer to the same query.
        """
        limits, now = self.cache.limits, self.tier.clock()
        if not answer.storable:
            return SharedAnswer(None, None, now, now)
        fresh_until = now + self.cache.ttl(answer)
        stale_until = fresh_until + (limits.stale_if_error if answer.found else 0.0)
        return SharedAnswer(answer.user, answer.backend, fresh_until, stale_until)


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
            in_flight=len(tier.tasks),
            problem=tier.problem,
        )
        return PartReport(sources=[source], gauges={"pending_purges": tier.pending_purges})

    async def purged(self) -> bool:
        """Wait up to 1 s until the shared cache has received all purges. Return whether it has."""
        return await self._tier.wait_until_purged()


def make_part(running: Running) -> SharedCachePart | None:
    """Return the part for the configured shared cache, or ``None`` without one."""
    options = running.settings.shared_cache
    if options is None:
        return None
    cache = load_class(installed_kinds(running.manager).shared_caches[options.kind])(options)
    return SharedCachePart(SharedTier(cache, running.counters), running)

"""The shared cache as a layer of lookups: answers are read before a lookup, and stored after it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tornado_idv.features.shared_cache.tier import SharedTier
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.single_flight import LookUp
from tornado_idv.model import Answer, Query, SharedAnswer, User


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

"""The directory: the answer cache, then the configured backends in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

import pluggy

from tornado_idv.errors import format_traceback
from tornado_idv.features.shadow.shadow import Shadow
from tornado_idv.features.shared_cache.answers import SharedAnswers
from tornado_idv.interfaces.backend import AnyBackend, BreakerOptions
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup.bulkhead import Bulkhead
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.chain import Chain, Explanation
from tornado_idv.lookup.circuit_breaker import CircuitBreaker
from tornado_idv.lookup.guard import BackendCall, Guard
from tornado_idv.lookup.single_flight import SingleFlight
from tornado_idv.model import Answer, Query, User

_log = logging.getLogger(__name__)
_NEVER_OPEN = BreakerOptions(failures=10**9)
"""For comparisons, which are few: some users may fail each time, and others must be compared."""


class Directory:
    """Looks users up in the cache, the configured backends and the ``idv_identify`` hook.

    ``manager`` has the hooks of plugins. ``encode`` gives the response body for
    a user, or for ``None``, "not found"; ``accepts`` says whether a record can be sent in a
    response. ``timeout`` bounds one lookup, in seconds. ``on_backend_result``, if given,
    is called with every call of a backend. ``previous`` is the directory that this one is to
    `replace`: a backend of both keeps its circuit breaker and its running calls. ``shared`` is
    read before the backends are called.
    """

    def __init__(
        self,
        manager: pluggy.PluginManager,
        backends: Sequence[AnyBackend],
        cache: AnswerCache,
        encode: Callable[[User | None], bytes],
        *,
        accepts: Callable[[User], bool],
        timeout: float = 2.0,
        on_backend_result: Callable[[BackendCall], None] | None = None,
        previous: Directory | None = None,
        shared: SharedAnswers | None = None,
    ) -> None:
        self.cache = cache
        self.timeout = timeout
        self._shared = shared
        self.guards = [
            Guard(each, accepts, on_backend_result, ttl=cache.limits.ttl) for each in backends
        ]
        self.canaries = [canary for each in self.guards for canary in each.canaries.values()]
        most = min((each.backend.options.max_concurrent for each in self.guards), default=1)
        self.batch_slots = Bulkhead(max(1, most // 2))
        """Lookups of batches at a time: single lookups find a free slot at each backend."""
        self.batch_turn = asyncio.Lock()
        """Held by a batch that begins a lookup, until other events of the loop were handled."""
        self._chain = chain = Chain(manager, self.guards, cache, encode, timeout)
        if previous is None:
            self._follow_changes()
        else:
            before = {guard.backend: guard for guard in previous.guards}
            for guard in self.guards:
                if guard.backend in before:
                    guard.share_state_of(before[guard.backend])

        def make_source() -> Chain:
            guards = [Guard(each, accepts, listens=False) for each in backends]
            for guard in guards:
                guard.breaker = CircuitBreaker(_NEVER_OPEN)
            return Chain(manager, guards, cache, encode, timeout)

        self._make_source = make_source
        self._observers = _observers(manager)
        look_up = (
            partial(shared.look_up, chain.find) if shared else lambda query, _: chain.find(query)
        )
        self._single_flight = SingleFlight(cache, look_up, timeout, self._notify)
        cache.on_late_hit = self._single_flight.start_refresh
        self.set_shadows(())

    async def find(self, query: Query) -> Answer:
        """Return the answer to a query; raises `Unavailable` or `Broken` if there is none.

        *Not found* means that every backend serving the query said "not known here".
        """
        return self.get_cached(query) or await self.start(query)

    def get_cached(self, query: Query) -> Answer | None:
        """Return the cached answer if it is fresh, without I/O."""
        answer = self.cache.get(query)
        if answer is not None and self._observes_hits:
            self._notify(query, answer)
            for shadow in self._shadows_of_hits:
                shadow.offer(query, answer, cached=True)
        return answer

    def start(self, query: Query) -> asyncio.Future[Answer]:
        """Start a lookup past the cache; the future has the result of `find`."""
        return self._single_flight.add(query)

    async def explain(self, query: Query) -> Explanation:
        """Call the backends as a lookup does, past the cache; nothing is cached."""
        return await self._chain.explain(query)

    def replace(self, previous: Directory, kept: Sequence[str]) -> None:
        """Take the place of ``previous``, at once.

        Of the found answers in its cache those of the backends ``kept`` are still right.
        Lookups that are running there end there, and are not cached here.
        """
        if kept:
            self.cache.take_found_answers(previous.cache, kept, previous._single_flight.queries)
        self._follow_changes()
        previous.stop_refreshing()

    def stop_refreshing(self) -> None:
        """Start no refresh that waits for others."""
        self._single_flight.stop_refreshing()

    async def join(self) -> None:
        """Wait until no lookup is running, also of canaries: their backends can be closed."""
        await self._single_flight.join()
        while self.batch_slots.in_use:  # a batch that waits for one begins its next lookup
            await asyncio.sleep(0)
            await self._single_flight.join()
        while tasks := [each.task for each in self.canaries if each.task]:
            await asyncio.wait(tasks)

    def set_shadows(self, shadows: Sequence[Shadow]) -> None:
        """Compare lookups with these shadows from now on."""
        self.shadows = shadows
        # Past the limits, the breakers and the canaries of the lookups that are served.
        source = self._make_source() if shadows else None
        for each in shadows:
            each.source = source
        self._shadows_of_hits = [each for each in shadows if each.settings.hits]
        self._observes_hits = bool(self._observers or self._shadows_of_hits)
        self._single_flight.on_outcome = [each.offer for each in shadows]

    def purge(self, purge: Purge) -> None:
        """Purge cached answers here, the shared ones, and those of all who share them."""
        self.cache.apply(purge)
        if self._shared is not None:
            self._shared.tier.purge(purge)

    def _follow_changes(self) -> None:
        for guard in self.guards:
            guard.backend.on_change(partial(self._purge_from, guard.name))
        if self._shared is not None:
            self._shared.tier.cache.on_purge(self.cache.apply)

    def _purge_from(self, changed: str, *queries: Query) -> None:
        """Purge cached answers of this backend and of every later one, which it may pre-empt.

        With ``queries`` only those of the users that they name, by whichever backend.
        """
        names = [guard.name for guard in self.guards]
        later = () if queries else names[names.index(changed) :]
        self.purge(Purge(tuple(later), queries))

    def _notify(self, query: Query, answer: Answer) -> None:
        for observer in self._observers:
            try:
                observer(query=query, answer=answer)
            except Exception as error:  # noqa: BLE001 - an observer never fails a lookup
                _log.error("an observer of lookups failed:\n%s", format_traceback(error))


def _observers(manager: pluggy.PluginManager) -> list[pluggy.HookCaller]:
    """Return one caller of ``idv_lookup_finished`` for each plugin that implements it.

    A call for all of them would end at the first that raises.
    """
    hook, plugins = manager.hook.idv_lookup_finished, manager.get_plugins()
    return [
        manager.subset_hook_caller(hook.name, plugins - {each.plugin})
        for each in reversed(hook.get_hookimpls())
    ]

"""The directory looks users up in the answer cache, then in the configured backends in order."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, Protocol

import pluggy

from tornado_idv.errors import LookupFailed, format_traceback
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup.bulkhead import Bulkhead
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.chain import Chain, Explanation
from tornado_idv.lookup.guard import BackendCall, Guard
from tornado_idv.lookup.single_flight import LookUp, SingleFlight
from tornado_idv.model import Answer, Query, User

_log = logging.getLogger(__name__)
Observer = Callable[..., object]
"""A function that takes the arguments of the hook ``idv_lookup_finished``."""


class Layer(Protocol):
    """A layer between the cache of one directory and its backends, such as a shared cache."""

    async def look_up(self, query: Query, min_ttl: float, proceed: LookUp) -> Answer:
        """Return an answer from this layer, or else call ``proceed``. See `LookUp`."""

    def purge(self, purge: Purge) -> object:
        """Purge answers from this layer. The directory has already purged its cache."""

    def follow(self) -> None:
        """From now on, apply purges by other processes to the cache of the directory."""


class Directory:
    """Looks users up in the cache, the configured backends and the ``idv_identify`` hook.

    ``manager`` has the hooks of plugins. ``encode`` returns the response body for a user, or for
    "not found" (``None``). ``accepts`` returns whether a user has valid identifiers. ``timeout``
    limits a lookup, in seconds. ``on_backend_result`` is called after every call of a backend. This
    directory will `replace` the directory ``previous``. A backend in both directories keeps its
    circuit breaker and its bulkhead. A lookup passes the ``layers`` in order, then the backends.
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
        on_backend_result: Callable[[BackendCall], object] = lambda _: None,
        previous: "Directory | None" = None,
        layers: Sequence[Layer] = (),
    ) -> None:
        self.cache = cache
        self.timeout = timeout
        self._layers = layers
        self.guards = [
            Guard(each, accepts, on_backend_result, ttl=cache.limits.ttl) for each in backends
        ]
        self.canaries = [canary for each in self.guards for canary in each.canaries.values()]
        most = min((each.backend.options.max_concurrent for each in self.guards), default=1)
        self.batch_slots = Bulkhead(max(1, most // 2))
        """Limits lookups of all batches together to half of the smallest ``max_concurrent``."""
        self.batch_turn = asyncio.Lock()
        """A batch holds this lock while it pauses, so that only one batch pauses at a time."""
        self._uncached: set[asyncio.Task[Any]] = set()
        self._chain = chain = Chain(manager, self.guards, cache, encode, timeout)
        if previous is None:
            self._follow_changes()
        else:
            before = {guard.backend: guard for guard in previous.guards}
            for guard in self.guards:
                if guard.backend in before:
                    guard.share_state_of(before[guard.backend])
        self._of_plugins = _observers(manager)
        look_up: LookUp = lambda query, _: chain.find(query)  # noqa: E731
        for each in reversed(layers):
            look_up = partial(each.look_up, proceed=look_up)
        self._look_up = look_up
        self._single_flight = SingleFlight(cache, look_up, timeout, self._notify)
        cache.on_late_hit = self._single_flight.start_refresh
        cache.on_gone = lambda query: [each.purge(Purge(queries=(query,))) for each in layers]
        self.observe((), ())

    async def find(self, query: Query) -> Answer:
        """Return the answer to a query. Raises `Unavailable` or `Broken` if the lookup fails.

        The answer is *not found* only if every backend for the query returns "not known here".
        """
        return self.get_cached(query) or await self.start(query)

    def get_cached(self, query: Query) -> Answer | None:
        """Return the fresh cached answer or ``None``, without I/O. Observers of hits are called."""
        answer = self.cache.get(query)
        if answer is not None and self._of_hits:
            self._notify(query, answer, cached=True)
        return answer

    def start(self, query: Query) -> asyncio.Future[Answer]:
        """Return a future for an answer of the backends. Join the running lookup, or start one."""
        return self._single_flight.add(query)

    async def explain(self, query: Query) -> Explanation:
        """Look a user up in the backends, without the cache, and return how each call ended."""
        self._uncached.add(task := asyncio.create_task(self._chain.explain(query)))
        task.add_done_callback(self._uncached.discard)
        return await task

    async def find_past_cache(self, query: Query) -> Answer:
        """Look a user up in the backends. Drop a user who is not found from all caches."""
        # A layer has no answer with an infinite TTL. It only stores the answer of the backends.
        self._uncached.add(task := asyncio.create_task(self._look_up(query, inf)))
        task.add_done_callback(self._uncached.discard)
        if not (answer := await task).found:
            self.cache.drop_user(query)
        return answer

    def replace(self, previous: "Directory", kept: Sequence[str]) -> None:
        """Replace the directory ``previous``. Take over its cached users of the ``kept`` backends.

        Running lookups continue in ``previous``. Their answers are not cached in this directory.
        """
        if kept:
            self.cache.take_found_answers(previous.cache, kept)
        self.cache.related = previous.cache.related
        self.cache.related.append(self.cache)
        self._follow_changes()
        previous.stop_refreshing()

    def stop_refreshing(self) -> None:
        self._single_flight.stop_refreshing()

    async def join(self) -> None:
        """Wait for all running lookups, also of canaries. Then the backends can be closed."""
        await self._single_flight.join()
        while self.batch_slots.in_use or self.batch_turn.locked():
            async with self.batch_turn:  # a batch that waits or pauses starts its next lookups
                await asyncio.sleep(0)
            await self._single_flight.join()
        while tasks := [*self._uncached, *(each.task for each in self.canaries if each.task)]:
            await asyncio.wait(tasks)

    def observe(self, lookups: Sequence[Observer], hits: Sequence[Observer]) -> None:
        """Call ``lookups`` after each lookup in the backends, and ``hits`` after each cache hit.

        A further call replaces these functions. The hooks of plugins are called in any case.
        """
        self._of_lookups = [*self._of_plugins, *lookups]
        self._of_hits = [*self._of_plugins, *hits]

    def purge(self, purge: Purge) -> None:
        """Purge answers from the cache, and from the layers behind it."""
        self.cache.apply(purge)
        for each in self._layers:
            each.purge(purge)

    def _follow_changes(self) -> None:
        for guard in self.guards:
            guard.backend.on_change(partial(self._purge_from, guard.name))
        for each in self._layers:
            each.follow()

    def _purge_from(self, changed: str, *queries: Query) -> None:
        """Purge answers of ``changed`` and later backends. Their users may now be in ``changed``.

        With ``queries``, purge only the answers for the users of these queries, of all backends.
        """
        names = [guard.name for guard in self.guards]
        self.purge(Purge(() if queries else tuple(names[names.index(changed) :]), queries))

    def _notify(
        self, query: Query, outcome: Answer | LookupFailed, *, cached: bool = False
    ) -> None:
        for observer in self._of_hits if cached else self._of_lookups:
            try:
                observer(query=query, outcome=outcome, cached=cached)
            except Exception as error:  # noqa: BLE001 - an observer never fails a lookup
                _log.error("an observer of lookups failed:\n%s", format_traceback(error))


def _observers(manager: pluggy.PluginManager) -> list[Observer]:
    """Return one function per plugin with the hook ``idv_lookup_finished``, to call this hook.

    A single call for all plugins would end at the first exception.
    """
    hook, plugins = manager.hook.idv_lookup_finished, manager.get_plugins()
    return [
        manager.subset_hook_caller(hook.name, plugins - {each.plugin})
        for each in reversed(hook.get_hookimpls())
    ]

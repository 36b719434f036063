"""The one door to lookups: the cache in front, then the backends in their order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pluggy

from tornado_idv.backend import AnyBackend
from tornado_idv.cache import AnswerCache
from tornado_idv.errors import Broken, Unavailable, trace
from tornado_idv.guard import Asked, Guard, unheard
from tornado_idv.model import Answer, Query, User

_log = logging.getLogger(__name__)


class Directory:
    """Finds users in the configured backends, asked in order.

    ``manager`` dispatches; it is this directory's own from here on. ``encode`` gives
    the bytes of the wire for a user, or for "not found". ``timeout`` bounds one
    lookup, in seconds. ``told`` hears what each asked backend said.
    """

    def __init__(
        self,
        manager: pluggy.PluginManager,
        backends: Sequence[AnyBackend],
        cache: AnswerCache,
        encode: Callable[[User | None], bytes],
        *,
        timeout: float = 2.0,
        told: Callable[[Asked], None] = unheard,
    ) -> None:
        self._hook = manager.hook
        self._cache = cache
        self._encode = encode
        self._timeout = timeout
        self._options = {backend.name: backend.options for backend in backends}
        for backend in reversed(backends):  # pluggy calls the last registered first
            manager.register(Guard(backend, told))
            backend.on_change(partial(self._forget, backend.name))

    async def find(self, query: Query) -> Answer:
        """The answer to a query; raises `Unavailable` or `Broken` when none could be had.

        *Not found* means that every backend which was asked said "not known here".
        """
        answer = self._cache.get(query)
        if answer is None:
            answer = await self._fetch(query)
        self._tell_observers(query, answer)
        return answer

    async def _fetch(self, query: Query) -> Answer:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._cache.fetch(query, self._ask, self._ttl)
        except TimeoutError:
            raise Unavailable(f"no answer within {self._timeout:g} s") from None
        except Broken as error:
            _log.error("lookup broken: %s", error)
            raise
        except Unavailable as error:
            _log.warning("lookup unavailable: %s", error)
            raise

    async def _ask(self, query: Query) -> Answer:
        coroutines = self._hook.idv_identify(query=query)
        if not coroutines:
            raise Unavailable(f"no backend serves {type(query).__name__}")
        try:
            for coroutine in coroutines:
                if answer := await coroutine:
                    return self._complete(answer)
        finally:
            for coroutine in coroutines:
                coroutine.close()
        return self._complete(Answer(None))

    def _complete(self, answer: Answer) -> Answer:
        return replace(answer, since=self._cache.timer(), body=self._encode(answer.user))

    def _ttl(self, answer: Answer) -> float:
        limits = self._cache.limits
        if answer.backend is not None:
            own = (
                self._options[answer.backend].cache_ttl if answer.backend in self._options else None
            )
            return limits.ttl if own is None else own
        own_times = (options.negative_ttl for options in self._options.values())
        times = (limits.negative_ttl if own is None else own for own in own_times)
        return min(times, default=limits.negative_ttl)

    def _forget(self, changed: str) -> None:
        """Drops what this backend answered, and the later ones, whom it may now forestall."""
        names = list(self._options)
        for name in names[names.index(changed) :]:
            self._cache.purge(name)

    def _tell_observers(self, query: Query, answer: Answer) -> None:
        given = {"query": query, "answer": answer}
        for observer in reversed(self._hook.idv_lookup_finished.get_hookimpls()):
            try:  # one at a time: pluggy ends the call at the first that raises
                observer.function(*(given[name] for name in observer.argnames))
            except Exception as error:  # noqa: BLE001 an observer never fails a lookup
                _log.error("an observer of lookups failed:\n%s", trace(error))

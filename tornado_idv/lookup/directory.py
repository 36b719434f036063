"""The one door to lookups: the cache in front, then the backends in their order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, get_args

import pluggy
from msgspec.structs import replace

from tornado_idv.backend import AnyBackend
from tornado_idv.errors import Broken, LookupFailed, Unavailable, format_traceback
from tornado_idv.hookspecs import implementations
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.guard import Asked, Guard
from tornado_idv.model import Answer, Query, User

_log = logging.getLogger(__name__)
_REFRESHES_AT_ONCE = 4


class Directory:
    """Finds users in the configured backends, asked in order.

    ``manager`` dispatches; it is this directory's own from here on. ``encode`` gives
    the bytes of the wire for a user, or for "not found"; ``accepts`` says whether a
    user's record is one that can be answered. ``timeout`` bounds one lookup, in seconds.
    ``told``, if given, hears what each asked backend said.
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
        told: Callable[[Asked], None] | None = None,
    ) -> None:
        self.cache = cache
        self._observers = implementations(manager.hook.idv_lookup_finished, "query", "answer")
        self._encode = encode
        self._timeout = timeout
        self._names = [backend.name for backend in backends]
        self._negative_ttls = {
            kind: _shortest(
                cache.limits.negative_ttl,
                [each.options.negative_ttl for each in backends if kind in each.serves],
            )
            for kind in get_args(Query)
        }
        for backend in reversed(backends):  # pluggy calls the last registered first
            manager.register(Guard(backend, accepts, told, ttl=cache.limits.ttl))
            backend.on_change(partial(self._forget, backend.name))
        self._asked = implementations(manager.hook.idv_identify, "query", "deadline")

    async def find(self, query: Query) -> Answer:
        """The answer to a query; raises `Unavailable` or `Broken` when none could be had.

        *Not found* means that every backend which was asked said "not known here".
        """
        return self.recall(query) or await self.look_up(query)

    def recall(self, query: Query) -> Answer | None:
        """The remembered answer to a query, if it is fresh, as `find` would give it."""
        answer = self.cache.get(query)
        if answer is not None and self._observers:
            self._tell_observers(query, answer)
        return answer

    async def look_up(self, query: Query) -> Answer:
        """As `find`, for a query that nothing fresh is remembered of."""
        looking = self.begin(query)
        with suppress(Exception):
            await looking
        return self.end(query, looking)

    def begin(self, query: Query) -> asyncio.Future[Answer]:
        """Begins what `look_up` does, for those who need no coroutine; `end` gives the answer."""
        return self.cache.fetch(query, self._ask, self._timeout)

    def end(self, query: Query, looking: asyncio.Future[Answer]) -> Answer:
        """What a lookup came to that was begun, and is over."""
        try:
            answer = looking.result()
        except TimeoutError:
            failure = Unavailable(f"no answer within {self._timeout:g} s")
            answer = self._stale_or(failure, query)
        except LookupFailed as error:
            answer = self._stale_or(error.copy(), query)
        if self._observers:
            self._tell_observers(query, answer)
        return answer

    def _stale_or(self, failure: LookupFailed, query: Query) -> Answer:
        """The stale answer that stands in for a failure; without one, raises the failure."""
        stale = self.cache.stale(query)
        if stale is None:
            raise failure from None
        return stale

    @asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Keeps answers that are asked for fresh, by asking again ahead of their time."""
        workers = [asyncio.create_task(self._refresh()) for _ in range(_REFRESHES_AT_ONCE)]
        try:
            yield
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _refresh(self) -> None:
        while True:
            query = await self.cache.due.get()
            await self.cache.refresh(query, self._ask, self._timeout)

    async def _ask(self, query: Query) -> Answer:
        """Asks the backends; the answer is made whole for the cache and the wire."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        coroutines = [
            offered for ask in self._asked if (offered := ask(query, deadline)) is not None
        ]
        if not coroutines:
            raise Unavailable(f"no backend answers {type(query).__name__}")
        try:
            answer = await _first(coroutines)
        finally:
            for coroutine in coroutines:
                coroutine.close()
        user, ttl = answer.user, answer.ttl
        if user is None:
            usual = self._negative_ttls[type(query)]
            ttl = usual if ttl is None else min(ttl, usual)
        return Answer(
            user,
            answer.backend,
            self.cache.timer(),
            self._encode(user),
            ttl=ttl,
            degraded=answer.degraded,
            storable=answer.storable,
        )

    def _forget(self, changed: str) -> None:
        """Drops what this backend answered, and the later ones, whom it may now forestall."""
        for name in self._names[self._names.index(changed) :]:
            self.cache.purge_backend(name)

    def _tell_observers(self, query: Query, answer: Answer) -> None:
        for observer in self._observers:
            try:  # one at a time: pluggy would end the call at the first that raises
                observer(query, answer)
            except Exception as error:  # noqa: BLE001 an observer never fails a lookup
                _log.error("an observer of lookups failed:\n%s", format_traceback(error))


async def _first(coroutines: Iterable[Coroutine[Any, Any, Answer | None]]) -> Answer:
    """The chain: each in turn, up to the first that knows the user.

    *Not found* is said only if every one of them said "not known here", with the shortest of
    the times for which they let that be remembered.
    """
    skipped: LookupFailed | None = None
    ttl: float | None = None
    storable = True
    for coroutine in coroutines:
        try:
            answer = await coroutine
        except LookupFailed as error:
            if not error.continues:
                raise
            skipped = error
            continue
        if answer is None:
            continue
        if not isinstance(answer, Answer):
            raise Broken("a plugin's idv_identify answered what is no Answer")
        if answer.found:
            return answer if skipped is None else replace(answer, degraded=True)
        storable = storable and answer.storable
        if answer.ttl is not None:
            ttl = answer.ttl if ttl is None else min(ttl, answer.ttl)
    if skipped is not None:
        raise skipped
    return Answer(None, ttl=ttl, storable=storable)


def _shortest(default: float, own: Sequence[float | None]) -> float:
    """The shortest of the backends' own times; ``default`` stands for one that has none."""
    return min((default if each is None else each for each in own), default=default)

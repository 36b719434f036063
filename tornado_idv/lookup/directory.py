"""The directory: the answer cache, then the configured backends in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import pluggy
from msgspec.structs import replace

from tornado_idv.backend import AnyBackend
from tornado_idv.errors import Broken, LookupFailed, Unavailable, format_traceback
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.deadlines import is_cancelled
from tornado_idv.lookup.guard import BackendCall, Guard, outcome_of
from tornado_idv.lookup.shared_answers import SharedAnswers
from tornado_idv.model import Answer, Query, User
from tornado_idv.shared import Purge

_log = logging.getLogger(__name__)
_MAX_REFRESHES = 4


class Explanation(NamedTuple):
    """The result of a lookup, and how each backend call ended, in order."""

    result: Literal["found", "not_found", "undetermined"]
    calls: list[BackendCall]


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
        self._shared = shared
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
        # Called directly: through pluggy a missed lookup takes 7 to 12 % longer
        # (benchmarks/dispatch.py, CPython 3.11).
        self.guards = [
            Guard(each, accepts, on_backend_result, ttl=cache.limits.ttl) for each in backends
        ]
        if previous is None:
            self._follow_changes()
        else:
            before = {guard.backend: guard for guard in previous.guards}
            for guard in self.guards:
                if guard.backend in before:
                    guard.take_over(before[guard.backend])
        self._workers: list[asyncio.Task[None]] = []
        self._explaining: set[asyncio.Task[Any]] = set()
        self._identify_hooks = _hook_callers(manager, "idv_identify")
        self._observers = _hook_callers(manager, "idv_lookup_finished")

    async def find(self, query: Query) -> Answer:
        """Return the answer to a query; raises `Unavailable` or `Broken` if there is none.

        *Not found* means that every backend serving the query said "not known here".
        """
        return self.get_cached(query) or await self.start(query)

    def get_cached(self, query: Query, now: float | None = None) -> Answer | None:
        """Return the cached answer if it is fresh, without I/O; ``now`` as in `AnswerCache.get`."""
        answer = self.cache.get(query, now)
        if answer is not None and self._observers:
            self._notify(query, answer)
        return answer

    def start(self, query: Query) -> asyncio.Future[Answer]:
        """Start a lookup past the cache; the future has the result of `find`."""
        return self.cache.fetch(query, self._look_up, self._timeout, self._finish)

    async def explain(self, query: Query) -> Explanation:
        """Call the backends as a lookup does, past the cache; nothing is cached.

        The hook ``idv_identify`` is not called: where plugins implement it, and no backend found
        the user, the result is not determined.
        """
        task = asyncio.ensure_future(self._explain(query))
        self._explaining.add(task)
        task.add_done_callback(self._explaining.discard)
        return await task

    async def _explain(self, query: Query) -> Explanation:
        deadline = asyncio.get_running_loop().time() + self._timeout
        calls: list[BackendCall] = []
        for guard in self.guards:
            if not guard.serves(query):
                continue
            started = self.cache.timer()
            end: Answer | LookupFailed | None
            try:
                end = await guard.find(query, deadline)
            except LookupFailed as error:
                end = error
            seconds = self.cache.timer() - started
            outcome, result = outcome_of(end)
            calls.append(BackendCall(guard.name, outcome, seconds, result))
            if result == "found" or (isinstance(end, LookupFailed) and not end.continues):
                break
        results = {call.result for call in calls}
        if "found" in results:
            return Explanation("found", calls)
        decided = results == {"not_found"} and not self._identify_hooks
        return Explanation("not_found" if decided else "undetermined", calls)

    @asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Refresh cached answers that are in use before they expire."""
        self.start_refreshing()
        try:
            yield
        finally:
            await asyncio.gather(*self.stop_refreshing(), return_exceptions=True)

    def start_refreshing(self) -> None:
        """Begin with what `refreshing` does."""
        self._workers = [asyncio.create_task(self._refresh()) for _ in range(_MAX_REFRESHES)]

    def stop_refreshing(self) -> list[asyncio.Task[None]]:
        """Cancel the tasks of `start_refreshing`, and return them."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.cancel()
        return workers

    def replace(self, previous: Directory, kept: Sequence[str]) -> None:
        """Take the place of ``previous``, at once.

        Of the found answers in its cache those of the backends ``kept`` are still right.
        Lookups that are running there end there, and are not cached here.
        """
        if kept:
            self.cache.take_over(previous.cache, kept)
        self._follow_changes()
        workers = previous.stop_refreshing()
        if workers:
            self.start_refreshing()

    async def join(self) -> None:
        """Wait until no lookup is running."""
        await self.cache.join()
        while self._explaining:
            await asyncio.wait(self._explaining)

    async def _refresh(self) -> None:
        while True:
            query = await self.cache.refresh_queue.get()
            await self.cache.refresh(query, self._counted_look_up, self._timeout)

    def purge(self, purge: Purge) -> None:
        """Purge cached answers here, the shared ones, and those of all who share them."""
        self.cache.apply(purge)
        if self._shared is not None:
            self._shared.purge(purge)

    async def _counted_look_up(self, query: Query) -> Answer:
        limits = self.cache.limits
        try:
            answer = await self._look_up(query, limits.ttl * (1 - limits.refresh_ahead))
        except Exception:
            self.cache.counters.refreshes["failed"] += 1
            raise
        self.cache.counters.refreshes["ok"] += 1
        return answer

    def _finish(self, query: Query, outcome: Answer | Exception) -> Answer:
        """Make one caller's result of a lookup's outcome, which callers may share."""
        answer = outcome if isinstance(outcome, Answer) else self._stale_answer(query, outcome)
        if self._observers:
            self._notify(query, answer)
        return answer

    def _stale_answer(self, query: Query, error: Exception) -> Answer:
        """Return the stale answer to serve instead of an error, or raise the error."""
        if isinstance(error, TimeoutError):
            error = Unavailable(f"no answer within {self._timeout:g} s")
        elif isinstance(error, LookupFailed):
            error = error.copy()  # raising it adds a traceback, and callers share the original
        else:
            raise error
        stale = self.cache.get_stale(query)
        if stale is None:
            raise error from None
        return stale

    def _look_up(self, query: Query, min_ttl: float = 0.0) -> Coroutine[Any, Any, Answer]:
        """Return the shared answer, if it is fresh for longer than ``min_ttl``, or a new one."""
        if self._shared is None:
            return self._ask_backends(query)
        return self._shared.look_up(query, self._ask_backends, min_ttl)

    async def _ask_backends(self, query: Query) -> Answer:
        """Call the backends and complete the answer for the cache and the response."""
        answer = await _first_found(self._calls(query))
        if answer is None:
            raise Unavailable(f"no backend answers {type(query).__name__}")
        user, ttl = answer.user, answer.ttl
        if user is None:
            negative_ttl = self._negative_ttls[type(query)]
            ttl = negative_ttl if ttl is None else min(ttl, negative_ttl)
        return Answer(
            user,
            answer.backend,
            self.cache.timer(),
            self._encode(user),
            ttl=ttl,
            degraded=answer.degraded,
            storable=answer.storable,
        )

    def _calls(self, query: Query) -> Iterator[Coroutine[Any, Any, Answer | None]]:
        """Yield the calls of the backends, then those of plugins; each is made when it is next."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        for guard in self.guards:
            if guard.serves(query):
                yield guard.find(query, deadline)
        for hook in self._identify_hooks:
            with _plugin_errors():
                of_plugin = hook(query=query, deadline=deadline)
            for each in of_plugin:
                # A caller may join until the deadline, and then waits as long again.
                yield _until(deadline + self._timeout, each)

    def _follow_changes(self) -> None:
        for guard in self.guards:
            guard.backend.on_change(partial(self._purge_from, guard.name))
        if self._shared is not None:
            self._shared.follow(self.cache.apply)

    def _purge_from(self, changed: str, *queries: Query) -> None:
        """Purge cached answers of this backend and of every later one, which it may pre-empt.

        With ``queries`` only those of the users that they name, by whichever backend.
        """
        later = () if queries else self._names[self._names.index(changed) :]
        self.purge(Purge(tuple(later), queries))

    def _notify(self, query: Query, answer: Answer) -> None:
        for observer in self._observers:
            try:
                observer(query=query, answer=answer)
            except Exception as error:  # noqa: BLE001 - an observer never fails a lookup
                _log.error("an observer of lookups failed:\n%s", format_traceback(error))


@contextmanager
def _plugin_errors() -> Iterator[None]:
    try:
        yield
    except LookupFailed:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        _log.error("a plugin's idv_identify failed:\n%s", format_traceback(error))
        raise Broken(f"a plugin's idv_identify failed with {type(error).__name__}") from error


async def _until(deadline: float, coroutine: Coroutine[Any, Any, Answer | None]) -> Answer | None:
    """Await a plugin's coroutine; no guard bounds it, so one that hangs is cancelled here."""
    async with asyncio.timeout_at(deadline):
        with _plugin_errors():  # inside, since a `TimeoutError` of the plugin is one of these
            return await coroutine


async def _first_found(
    coroutines: Iterable[Coroutine[Any, Any, Answer | None]],
) -> Answer | None:
    """Await one after the other, up to the first that found the user; ``None`` if there is none.

    *Not found* only if each of them said "not known here": one that was skipped as unavailable
    might know the user. It is cached for the shortest time that one of them allows.
    """
    skipped: LookupFailed | None = None
    ttl: float | None = None
    storable, were_called = True, False
    for coroutine in coroutines:
        were_called = True
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
            raise Broken("a plugin's idv_identify returned something other than an Answer")
        if answer.found:
            return answer if skipped is None else replace(answer, degraded=True)
        storable = storable and answer.storable
        if answer.ttl is not None:
            ttl = answer.ttl if ttl is None else min(ttl, answer.ttl)
    if skipped is not None:
        raise skipped
    return Answer(None, ttl=ttl, storable=storable) if were_called else None


def _hook_callers(manager: pluggy.PluginManager, hook: str) -> list[pluggy.HookCaller]:
    """One caller of a hook for each plugin that implements it.

    A call for all of them would end at the first that raises, without the results before it.
    """
    plugins = manager.get_plugins()
    return [
        manager.subset_hook_caller(hook, plugins - {each.plugin})
        for each in reversed(getattr(manager.hook, hook).get_hookimpls())
    ]


def _shortest(default: float, own: Sequence[float | None]) -> float:
    """Return the shortest of the backends' own times; ``default`` stands for one without."""
    return min((default if each is None else each for each in own), default=default)

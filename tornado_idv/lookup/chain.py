"""The chain: the configured backends in order, each behind its guard, then plugins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import pluggy

from tornado_idv.errors import Broken, LookupFailed, Unavailable, format_traceback
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.deadlines import is_cancelled
from tornado_idv.lookup.guard import BackendCall, Guard, outcome_of
from tornado_idv.model import Answer, Query, User

_log = logging.getLogger(__name__)


class Explanation(NamedTuple):
    """The result of a lookup, and how each backend call ended, in order."""

    result: Literal["found", "not_found", "undetermined"]
    calls: list[BackendCall]


class Chain:
    """Guards in order, and the ``idv_identify`` hook; other parameters as of `Directory`."""

    def __init__(
        self,
        manager: pluggy.PluginManager,
        guards: Sequence[Guard],
        cache: AnswerCache,
        encode: Callable[[User | None], bytes],
        timeout: float,
    ) -> None:
        self._guards = guards
        self._encode = encode
        self._timeout = timeout
        self._timer = cache.timer
        default = cache.limits.negative_ttl
        self._negative_ttls: dict[type[Query], float] = {}
        for kind in get_args(Query):
            backends = [each.backend for each in guards if kind in each.backend.serves]
            own = [each.options.negative_ttl for each in backends]
            ttls = (default if ttl is None else ttl for ttl in own)
            self._negative_ttls[kind] = min(ttls, default=default)
        self._identify_hooks = hook_callers(manager, "idv_identify")

    async def find(self, query: Query) -> Answer:
        """Return the answer for the cache and the response; raises `Unavailable` or `Broken`.

        *Not found* only if every backend serving the query said "not known here": one that was
        skipped as unavailable might know the user. It is cached for the shortest time that one of
        them allows.
        """
        skipped: LookupFailed | None = None
        ttl, storable, were_called = self._negative_ttls[type(query)], True, False
        for coroutine in self._calls(query):
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
                break
            storable = storable and answer.storable
            if answer.ttl is not None:
                ttl = min(ttl, answer.ttl)
        else:
            if not were_called:
                raise Unavailable(f"no backend answers {type(query).__name__}")
            if skipped is not None:
                raise skipped
            answer = Answer(None, ttl=ttl, storable=storable)
        return Answer(
            answer.user,
            answer.backend,
            self._timer(),
            self._encode(answer.user),
            ttl=answer.ttl,
            degraded=answer.degraded or skipped is not None,
            storable=answer.storable,
        )

    async def explain(self, query: Query) -> Explanation:
        """Call the backends as a lookup does.

        The hook ``idv_identify`` is not called: where plugins implement it, and no backend found
        the user, the result is not determined.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout
        calls: list[BackendCall] = []
        for guard in self._guards:
            if not guard.serves(query):
                continue
            started = self._timer()
            end: Answer | LookupFailed | None
            try:
                end = await guard.find(query, deadline)
            except LookupFailed as error:
                end = error
            seconds = self._timer() - started
            outcome, result = outcome_of(end)
            calls.append(BackendCall(guard.name, outcome, seconds, result))
            if result == "found" or (isinstance(end, LookupFailed) and not end.continues):
                break
        results = {call.result for call in calls}
        if "found" in results:
            return Explanation("found", calls)
        decided = results == {"not_found"} and not self._identify_hooks
        return Explanation("not_found" if decided else "undetermined", calls)

    def _calls(self, query: Query) -> Iterator[Coroutine[Any, Any, Answer | None]]:
        """Yield the calls of the backends, then those of plugins; each is made when it is next."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        for guard in self._guards:
            if guard.serves(query):
                yield guard.find(query, deadline)
        for hook in self._identify_hooks:
            with _plugin_errors():
                of_plugin = hook(query=query, deadline=deadline)
            for each in of_plugin:
                yield _until(deadline, each)


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


def hook_callers(manager: pluggy.PluginManager, hook: str) -> list[pluggy.HookCaller]:
    """One caller of a hook for each plugin that implements it.

    A call for all of them would end at the first that raises, without the results before it.
    """
    plugins = manager.get_plugins()
    return [
        manager.subset_hook_caller(hook, plugins - {each.plugin})
        for each in reversed(getattr(manager.hook, hook).get_hookimpls())
    ]

"""The chain: the configured backends in order, each behind its guard, then plugins."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, Literal, NamedTuple

import pluggy
from pluggy import HookImpl

from tornado_idv.errors import Broken, LookupFailed, Unavailable, format_traceback
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.deadlines import is_cancelled
from tornado_idv.lookup.guard import BackendCall, Guard, outcome_of
from tornado_idv.model import Answer, Query, User

_log = logging.getLogger(__name__)
_Call = Coroutine[Any, Any, Answer | None]
_Observe = Callable[[str, _Call], _Call]


class Explanation(NamedTuple):
    """The result of an explained lookup: the answer or failure, and the calls in order."""

    end: Answer | LookupFailed
    calls: list[BackendCall]

    @property
    def result(self) -> Literal["found", "not_found", "undetermined"]:
        if isinstance(self.end, LookupFailed):
            return "undetermined"
        return "found" if self.end.found else "not_found"


class Chain:
    """Calls the guards in order, then the hook ``idv_identify`` of ``plugins``.

    `Directory` explains the other parameters.
    """

    def __init__(
        self,
        plugins: pluggy.PluginManager,
        guards: Sequence[Guard],
        cache: AnswerCache,
        encode: Callable[[User | None], bytes],
        timeout: float,
    ) -> None:
        self.guards = guards
        self._encode = encode
        self._timeout = timeout
        self._timer = cache.timer
        self._default_negative_ttl = cache.limits.negative_ttl
        # As pluggy does, call the implementation that was registered last first.
        hooks = reversed(plugins.hook.idv_identify.get_hookimpls())
        self._sources: Sequence[Guard | _PluginDispatch] = [*guards, *map(_PluginDispatch, hooks)]

    async def find(self, query: Query, observe: _Observe | None = None) -> Answer:
        """Query the backends, then plugins. Return the answer. Raises `Unavailable` or `Broken`.

        The answer is *not found* only if every backend for the query returns "not known here". A
        skipped backend might know the user. The TTL of *not found* is the shortest of these
        backends. ``observe`` gets the name and the coroutine of each call to a backend or plugin.
        It returns a coroutine, which is awaited in place of the call.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout
        sources = [each for each in self._sources if each.serves(query)]
        calls = [(each.name, each.find(query, deadline)) for each in sources]
        if not calls:
            raise Unavailable(f"no backend serves {type(query).__name__} queries")
        skipped: LookupFailed | None = None
        ttl, storable = inf, True
        try:
            for name, call in calls:
                try:
                    answer = await (call if observe is None else observe(name, call))
                except LookupFailed as error:
                    if not error.continues:
                        raise
                    skipped = error
                    continue
                if answer is None:
                    continue
                storable = storable and answer.storable
                if answer.found:
                    break
                if answer.ttl is not None:
                    ttl = min(ttl, answer.ttl)
            else:
                if skipped is not None:
                    raise skipped
                answer = Answer(None, ttl=min(ttl, self._negative_ttl(query)), storable=storable)
        finally:
            for _, call in calls:  # a coroutine that is neither awaited nor closed logs a warning
                call.close()
        return Answer(
            answer.user,
            answer.backend,
            self._timer(),
            self._encode(answer.user),
            ttl=answer.ttl,
            degraded=answer.degraded or skipped is not None,
            storable=storable,
        )

    def _negative_ttl(self, query: Query) -> float:
        default = self._default_negative_ttl
        ttls = (each.backend.options.negative_ttl for each in self.guards if each.serves(query))
        return min((default if ttl is None else ttl for ttl in ttls), default=default)

    async def explain(self, query: Query) -> Explanation:
        """Look a user up as `find` does, and record the outcome of each call."""
        calls: list[BackendCall] = []
        canaries = {each.name: each.canaries for each in self.guards}

        async def observe(name: str, call: _Call) -> Answer | None:
            started = self._timer()
            end: Answer | LookupFailed | None
            try:
                end = await call
            except LookupFailed as error:
                end = error
            outcome, result = outcome_of(end)
            canary = canaries.get(name, {}).get(type(query))
            if canary is not None and outcome == "not known here":
                outcome = f"{outcome}; {canary.summary}"
            calls.append(BackendCall(name, outcome, self._timer() - started, result))
            if isinstance(end, LookupFailed):
                raise end
            return end

        try:
            return Explanation(await self.find(query, observe), calls)
        except LookupFailed as error:
            return Explanation(error, calls)


class _PluginDispatch:
    """The hook implementation ``idv_identify`` of a plugin. It has a deadline, but no guard."""

    def __init__(self, implementation: HookImpl) -> None:
        self.name = implementation.plugin_name
        self._function: Callable[..., Any] = implementation.function
        self._parameters = implementation.argnames

    def serves(self, query: Query) -> bool:  # noqa: ARG002 as `Guard.serves`
        return True

    async def find(self, query: Query, deadline: float) -> Answer | None:
        name, given = self.name, {"query": query, "deadline": deadline}
        arguments = {each: given[each] for each in self._parameters}
        try:
            async with asyncio.timeout_at(deadline) as timeout:
                answer = await self._function(**arguments)
        except LookupFailed:
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if timeout.expired():
                raise Unavailable("no answer within the request's time") from None
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            _log.error("plugin %s: idv_identify failed:\n%s", name, format_traceback(error))
            reason = f"plugin {name}: idv_identify failed with {type(error).__name__}"
            raise Broken(reason) from error
        if answer is not None and not isinstance(answer, Answer):
            raise Broken(f"plugin {name}: idv_identify returned something other than an Answer")
        return answer

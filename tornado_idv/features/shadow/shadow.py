"""One shadow: a backend that is compared with the backends in use.

The shadow gets a sample of the real lookups. Each comparison is a separate task. It starts after
the clients have received their answer.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from math import inf
from typing import Any

from tornado_idv.admin.report import BackendReport, guard_report
from tornado_idv.errors import IdvError, LookupFailed, Untrusted, format_traceback
from tornado_idv.features.shadow import PREFIX
from tornado_idv.features.shadow.state import ShadowState
from tornado_idv.identifiers import Identifiers
from tornado_idv.interfaces.backend import AnyBackend, BackendOptions, ShadowOptions
from tornado_idv.kit.comparison import Comparison, compare
from tornado_idv.lookup.chain import Chain
from tornado_idv.lookup.guard import BackendCall, Guard
from tornado_idv.lookup.source_identity import identity_of
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Answer, Query
from tornado_idv.registry import close_backend, open_backend
from tornado_idv.units import parse_percentage

_log = logging.getLogger(__name__)
_OPEN_AGAIN = 30.0
"""Seconds between attempts to open the backend."""
_BURST = 1.0
"""Burst of the rate limit, in seconds. At 20/s, about 20 comparisons may start together."""
_MAX_SOURCE_LOOKUPS = 4
"""Maximum number of concurrent lookups in the source for comparisons."""
_CLOSE_TIMEOUT = 2.0
"""Two timeouts of `close` in seconds: for the running lookups, then for closing the backend."""
_AGAIN = 60.0
"""Seconds until a mismatch is compared again, even if no client looks the user up."""
_MAX_AGAIN = 500
"""Maximum number of mismatches to compare again in one round."""
_DIFFERENCES = ("missing", "extra", "differs")

Outcome = Answer | LookupFailed


class Shadow:
    """A backend that is compared with a source, from `start` to `close`.

    ``build`` creates the backend. The backend is opened in the background, with a retry every 30 s
    after a failure. ``state`` stores comparisons. ``chance`` returns random numbers from 0 to
    1, and ``timer`` returns seconds.
    """

    def __init__(
        self,
        options: BackendOptions,
        build: Callable[[], AnyBackend],
        identifiers: Identifiers,
        counters: Counters,
        state: ShadowState | None = None,
        *,
        chance: Callable[[], float] = random.random,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options, self.name = options, options.name
        self.identity = identity_of(options)
        self.settings = options.shadow or ShadowOptions(sample="100%")
        self.identifiers = identifiers
        self.guard: Guard | None = None
        """Calls the backend with limits and a breaker. ``None`` until the backend is open."""
        self._problem: str | None = "not open yet"
        self._build, self.state = build, state
        self._fraction = float(parse_percentage(self.settings.sample)) / 100
        self._interval = self.settings.rate.seconds / self.settings.rate.count
        self._chance, self._timer = chance, timer
        self.part = f"{PREFIX}{options.name}"
        self._counters, self._counted = counters, counters.counts[self.part]
        self._next = -inf
        self._source_lookups = asyncio.Semaphore(_MAX_SOURCE_LOOKUPS)
        self._background: list[asyncio.Task[None]] = []
        self.source: Chain
        """The backends in use, with separate concurrency limits and breakers for comparisons. It is
        set before the first comparison."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Open the backend in the background. A second call has no effect."""
        if not self._background:
            self._background.append(asyncio.create_task(self._open()))
            if self.state is not None:
                self.state.start(lambda: self._problem)
                self._background.append(asyncio.create_task(self._repeat(self.state)))

    def report(self) -> BackendReport:
        """Return the state of the backend for the admin listener."""
        closed = BackendReport(self.part, self.options.kind, "closed")
        report = guard_report(self.guard, self._counters) if self.guard else closed
        of_state = self.state.problem if self.state else None
        report.problem = self._problem or of_state or report.problem
        return report

    def offer(self, query: Query, outcome: Outcome, *, cached: bool) -> None:
        """Start a comparison for the outcome of a lookup, if the lookup is in the random sample.

        A cached outcome may be old, so the comparison looks the user up in the source again. If the
        rate or the number of concurrent comparisons is exceeded, the lookup counts as skipped.
        """
        if self._chance() >= self._fraction:
            return
        now = self._timer()
        if now < self._next or len(self._tasks) >= self.options.max_concurrent:
            self._counted["skipped"] += 1
            return
        # The following checks are slower, so they run last: few lookups get this far.
        first, guard = None, self.guard
        # A fresh outcome needs no second lookup in the source.
        if isinstance(outcome, LookupFailed) or not (cached or outcome.shared):
            first = _trusted(outcome, is_sound=_is_sound(self.source.guards, query))
        elif not self.settings.hits:
            return
        if guard is None:
            self._counted["skipped"] += 1
        elif guard.is_asked(query):
            # `_next` lags behind the clock by at most the burst.
            self._next = max(self._next, now - _BURST) + self._interval
            task = asyncio.create_task(self._run(guard, query, first))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _repeat(self, state: ShadowState) -> None:
        while True:
            await asyncio.sleep(_AGAIN)
            await self.compare_again(state)

    async def compare_again(self, state: ShadowState) -> None:
        """Compare stored mismatches and failures again, one at a time."""
        for query in await state.due(_AGAIN, _MAX_AGAIN):
            if self.guard:
                await self._run(self.guard, query, None)
            await asyncio.sleep(self._interval)

    def cancel(self) -> None:
        """Cancel the running comparisons, because their source is about to close."""
        for task in self._tasks:
            task.cancel()

    async def close(self, *, discard: bool = False) -> None:
        """Cancel all tasks and close the backend. With ``discard``, delete the comparisons."""
        canaries = self.guard.canaries.values() if self.guard else ()
        lookups = (each.task for each in canaries if each.task)
        tasks = [*self._tasks, *self._background, *lookups]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)
        if self.guard is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await close_backend(self.guard.backend)
        if self.state is not None:
            await self.state.close(discard=discard)

    async def _open(self) -> None:
        while self.guard is None:
            try:
                backend = self._build()
                await open_backend(backend, may_be_degraded=True)
            except IdvError as error:
                if self._problem != str(error):
                    _log.error("shadow %s cannot be opened: %s", self.name, error)
                self._problem = str(error)
                await asyncio.sleep(_OPEN_AGAIN)
            else:
                self._problem = None
                self.guard = Guard(
                    backend, self.identifiers.accepts, self._on_call, timer=self._timer
                )
                self.guard.name = self.part

    def _on_call(self, call: BackendCall) -> None:
        self._counters.count_backend_call(self.part, call.result, call.outcome, call.seconds)

    async def _run(self, guard: Guard, query: Query, first: Outcome | None) -> None:
        began = time.time()
        try:
            comparison = await self._compare(guard, query, self.source, first)
            if comparison is None:
                self._counted["skipped"] += 1
                return
            self._counted.update([comparison.result, *comparison.fields])
            if self.state is not None:
                self.state.record(query, comparison, began)
        except Exception as error:  # noqa: BLE001 - no caller awaits this task
            _log.error("shadow %s: a comparison failed:\n%s", self.name, format_traceback(error))

    async def _compare(
        self, guard: Guard, query: Query, source: Chain, outcome: Outcome | None
    ) -> Comparison | None:
        """Compare source and shadow. Return ``None`` if too many source lookups are running."""
        first = outcome or await self._ask_source(query, source)
        if first is None:
            return None
        if isinstance(first, LookupFailed):
            return self._of(first, first)
        # The lookup has a timeout, and so has its canary. If the backend may have recovered between
        # the two, the guard repeats both.
        deadline = asyncio.get_running_loop().time() + 4 * self.options.timeout
        target = await _ask(guard.find(query, deadline), [guard], query)
        comparison = self._of(first, target)
        if comparison.result not in _DIFFERENCES and (first.found or comparison.result != "match"):
            return comparison
        # The user may have changed during the comparison. If the source returns the same user
        # before and after the lookup in the shadow, it had this user during the lookup. The second
        # lookup also detects a recovered source whose first answer was "not found".
        again = await self._ask_source(query, source)
        if again is None:
            return None
        if self._of(first, again).result == "match":
            return comparison
        # The source has changed. A difference may only mean that the shadow has not followed yet.
        changed = self._of(again, target)
        is_known = changed.result not in _DIFFERENCES
        return changed if is_known else Comparison("unverified", user=comparison.user)

    def _of(self, source: Outcome, target: Outcome) -> Comparison:
        one, other = (each.user if isinstance(each, Answer) else each for each in (source, target))
        return compare(one, other, self.identifiers.differences)

    async def _ask_source(self, query: Query, source: Chain) -> Outcome | None:
        if self._source_lookups.locked():
            return None
        async with self._source_lookups:
            return await _ask(source.find(query), source.guards, query)


async def _ask(
    lookup: Coroutine[Any, Any, Answer | None], guards: Iterable[Guard], query: Query
) -> Outcome:
    is_sound = _is_sound(guards, query)
    try:
        answer = await lookup or Answer(None)
    except LookupFailed as error:
        return error
    return _trusted(answer, is_sound=is_sound and _is_sound(guards, query))


def _trusted(outcome: Outcome, *, is_sound: bool) -> Outcome:
    """Return the outcome, or `Untrusted` if a problem of the backends makes it unreliable.

    "Not found" is unreliable while a backend reports a problem (not ``is_sound``). Every outcome is
    unreliable if a backend was skipped, because this backend may have a user for the query.
    """
    if isinstance(outcome, Answer) and (outcome.degraded or not (outcome.found or is_sound)):
        return Untrusted("a backend was skipped or has a problem")
    return outcome


def _is_sound(guards: Iterable[Guard], query: Query) -> bool:
    """Return whether ``problem`` is ``None`` in every backend that gets this query."""
    try:
        return all(each.backend.problem is None for each in guards if each.is_asked(query))
    except Exception:  # noqa: BLE001 - of a plugin
        return False

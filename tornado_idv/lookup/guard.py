"""One backend behind its guard: timeout, concurrency limit, circuit breaker, query filter.

The guard also validates the results of the backend. Only failures of the backend count against its
circuit breaker. Errors caused by the query, disconnected clients, limits of this service, and "not
known here" do not count.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from functools import partial
from math import inf
from typing import Literal

from msgspec import Struct

from tornado_idv.errors import Broken, LookupFailed, Unavailable, format_traceback
from tornado_idv.identifiers import PLAN_FORMAT, PROFILE_URL_FORMAT, folded, is_plan, is_profile_url
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.lookup.bulkhead import Bulkhead
from tornado_idv.lookup.canary import KINDS, Canary, absent_canaries_of, canaries_of
from tornado_idv.lookup.circuit_breaker import CircuitBreaker, Permit
from tornado_idv.lookup.deadlines import DeadlineQueue, Timeout, is_cancelled
from tornado_idv.model import Answer, BackendResult, Query, Step, User
from tornado_idv.options import compile_pattern

_log = logging.getLogger(__name__)
_MIN_TIME_LEFT = 0.05
"""Minimum remaining seconds of a request. With less time, the backend is not called."""
_RECOVERY_INTERVAL = 10.0
"""Minimum seconds between two log lines "available again" of one backend."""
_MAX_TRIES = 4
"""Maximum attempts to look up a user and the canary on the same server."""
_OPEN = "circuit breaker open"
_EXCLUDED = Answer(None)
"""The answer to a query excluded by the option ``match``."""


CallResult = Literal[
    "found", "not_found", "unavailable", "broken", "rejected", "cancelled", "verified"
]
"""The result of a call. ``rejected`` means that the guard did not call the backend.

``verified`` is a report by the backend itself, without a call, that lookups succeed again."""


class NotCalled(Unavailable):
    """The guard did not call the backend: a limit, an open circuit, or too little time left."""


class BackendCall(Struct, frozen=True):
    """A finished call of a backend or plugin. ``outcome`` is a phrase for the operator."""

    backend: str
    outcome: str
    seconds: float
    result: CallResult


class Guard:
    """Calls one configured backend for the directory.

    A lookup is cancelled at its deadline. It returns the requested user or "not known here", or
    raises `Unavailable` or `Broken` with the name of the backend. ``accepts`` returns whether a
    user has valid identifiers. ``on_result`` is called with every `BackendCall`. ``ttl`` is the
    maximum time to live of users if the option ``cache_ttl`` is not set. ``timer`` returns seconds.
    A guard that ``listens`` becomes the listener of `on_available`; a backend has only one.
    """

    def __init__(
        self,
        backend: AnyBackend,
        accepts: Callable[[User], bool],
        on_result: Callable[[BackendCall], object] = lambda _: None,
        *,
        ttl: float = inf,
        timer: Callable[[], float] = time.monotonic,
        listens: bool = True,
    ) -> None:
        options = backend.options
        self.backend = backend
        self.name = backend.name
        self._steps: list[Step] | None = None
        self._serves = backend.serves
        self._accepts = accepts
        self._on_result = on_result
        self._timer = timer
        self._timeout = options.timeout
        self._ttl = options.cache_ttl
        self._max_ttl = ttl if options.cache_ttl is None else options.cache_ttl
        self._may_skip = options.on_unavailable == "continue"
        self._match = compile_pattern(options.match) if options.match is not None else None
        self.breaker = CircuitBreaker(options.breaker, timer)
        if listens:
            backend.on_available(self._on_available)
        queries, absent = canaries_of(options), absent_canaries_of(options)
        absent = {name: each for name, each in absent.items() if type(each) in self._serves}
        self.canaries = {
            kind: Canary(options, kind, absent, partial(self.find, canary=True), timer)
            for kind in KINDS
            if kind in self._serves and (absent or kind in map(type, queries.values()))
        }
        """The `Canary` for each kind of query that has canaries."""
        self._judges_found = any(each.judges_found for each in self.canaries.values())
        self._folds_nicknames = options.folds_nicknames
        self._deadlines = DeadlineQueue(Timeout.expire)
        self._bulkhead = Bulkhead(options.max_concurrent)
        self._failing = False
        self._next_recovery = -inf

    def share_state_of(self, other: Guard) -> None:
        """Take over circuit breaker, bulkhead and canary results of a guard of the same backend."""
        self.breaker, self._bulkhead = other.breaker, other._bulkhead
        self._failing, self._next_recovery = other._failing, other._next_recovery
        for kind, canary in self.canaries.items():
            canary.share_state_of(other.canaries[kind])

    @property
    def in_flight(self) -> int:
        return self._bulkhead.in_use

    def record_steps(self) -> list[Step]:
        """Return a list to which all later lookups append each `Step`."""
        self._steps = []
        return self._steps

    def serves(self, query: Query) -> bool:
        return type(query) in self._serves

    def is_asked(self, query: Query) -> bool:
        """Return whether the backend serves this kind of query and ``match`` includes the query."""
        return self.serves(query) and (self._match is None or self._match(query.text))

    async def find(self, query: Query, deadline: float, *, canary: bool = False) -> Answer | None:
        """Look the query up in the backend until ``deadline``, in seconds of the loop's clock."""
        if self._match is not None and not self._match(query.text) and not canary:
            return _EXCLUDED
        started = self._timer()
        outcome = "client disconnected"  # unless the lookup ends otherwise below
        result: CallResult = "cancelled"
        try:
            answer = await self._find(query, deadline, canary=canary)
            judged = self._judges_found or answer is None or not answer.found
            if self.canaries and judged and not canary:
                answer = await self._trusted(query, answer, started, deadline)
            outcome, result = outcome_of(answer)
            recovers = self._failing and self._timer() >= self._next_recovery
            if recovers and not any(each.problem for each in self.canaries.values()):
                self._failing = False
                self._next_recovery = self._timer() + _RECOVERY_INTERVAL
                _log.info("backend %s: available again", self.name)
        except LookupFailed as error:
            outcome, result = outcome_of(error)
            self._log_failure(error)
            error.backend = self.name
            error.retry_after = max(error.retry_after, self.breaker.next_probe)
            error.continues = self._may_skip and isinstance(error, Unavailable)
            raise
        finally:
            self._on_result(BackendCall(self.name, outcome, self._timer() - started, result))
        return answer

    async def _trusted(
        self, query: Query, answer: Answer | None, started: float, deadline: float
    ) -> Answer | None:
        """Return an answer from a server that has found the canaries. Raises `Unavailable`.

        Unless the canaries confirm ``answer``, look them up, and then look the user up again.
        The caller must not hold a permit of the bulkhead, because these lookups need a permit.
        """
        canary = self.canaries.get(type(query))
        if canary is None or (answer is not None and answer.found and not canary.judges_found):
            return answer
        before: Collection[str | None] = ()
        for _ in range(_MAX_TRIES):
            server = None if answer is None else answer.server
            if canary.is_fresh(self._timer(), started, server):
                break
            found_by = await canary.confirm(self._timer(), deadline, server)
            if before == found_by == {server}:
                break
            # Look the user up again: the source may have been empty until the canaries were found.
            before, started = found_by, self._timer()
            answer = await self._find(query, deadline)
            if answer is not None and answer.found and not canary.judges_found:
                break  # a found user needs no confirmation
        else:
            raise Unavailable("the responding server has not found the canary; other servers have")
        if self._steps is not None:
            self._steps.append(Step("canary", canary.summary))
        return answer

    async def _find(self, query: Query, deadline: float, *, canary: bool = False) -> Answer | None:
        """Call the backend within its limits, and report the result to the circuit breaker."""
        if not self._bulkhead.try_acquire():
            if not self._bulkhead.can_queue:
                raise NotCalled("max_concurrent reached; the queue is full")
            # Wait for half of the time. The rest is for the call, or for the next backend. Canaries
            # go first, because other lookups wait for their results.
            until = (asyncio.get_running_loop().time() + deadline) / 2
            if not await self._bulkhead.acquire(until, first=canary):
                raise NotCalled("max_concurrent reached; the lookup timed out in the queue")
        permit: Permit | None = None
        report: Callable[[Permit], object] = self.breaker.abandoned  # if cancelled, too
        try:
            now = asyncio.get_running_loop().time()
            if deadline - now < _MIN_TIME_LEFT:
                raise NotCalled("not called: the request's time is nearly over")
            permit = self.breaker.try_acquire()
            if permit is None:
                wait = self.breaker.next_probe
                probe = f"next probe in {wait:.2g} s" if wait else "waiting for a probe"
                raise NotCalled(f"{_OPEN}, {probe}")
            answer = await self._call(query, now, deadline, canary=canary)
            report = self.breaker.succeeded
        except LookupFailed as error:
            if error.counts_against_breaker:
                # A broken backend has responded: it is neither overloaded nor down.
                down = isinstance(error, Unavailable)
                report = self._record_failure if down else self.breaker.succeeded
            raise
        finally:
            if permit is not None:
                report(permit)
            self._bulkhead.release()
        return answer

    async def _call(
        self, query: Query, now: float, deadline: float, *, canary: bool
    ) -> Answer | None:
        """Call the backend. Each exception of the backend becomes `Unavailable` or `Broken`."""
        own_deadline = now + self._timeout
        timeout = Timeout(self._deadlines, min(own_deadline, deadline))
        try:
            with timeout:
                backend, steps = self.backend, self._steps
                if canary:
                    lookup = backend.find_canary(query)
                else:
                    lookup = backend.find(query) if steps is None else backend.explain(query, steps)
                found = await lookup
        except LookupFailed:
            raise
        except TimeoutError:
            if timeout.expired and deadline < own_deadline:
                raise Unavailable(
                    "no answer within the request's time", counts_against_breaker=False
                ) from None
            raise Unavailable(f"no answer within {self._timeout:g} s") from None
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise Broken("raised CancelledError by itself") from None
        except (Exception, SystemExit) as error:
            raise Broken(f"failed with {type(error).__name__}") from error
        return self._as_answer(found, query)

    def _as_answer(self, found: object, query: Query) -> Answer | None:
        if found is None:
            return None
        if not isinstance(found, BackendResult):
            return Answer(self._validated(found, query), self.name, ttl=self._ttl)
        is_number = isinstance(found.ttl, (int, float)) and 0 <= found.ttl < inf  # False for NaN
        if found.ttl is not None and not is_number:
            raise Broken("returned a time to live that is not a number of seconds")
        if found.user is None:
            return Answer(None, ttl=found.ttl, storable=found.storable, server=found.server)
        ttl = self._ttl if found.ttl is None else min(self._max_ttl, found.ttl)
        user = self._validated(found.user, query)
        return Answer(user, self.name, ttl=ttl, storable=found.storable, server=found.server)

    def _validated(self, user: object, query: Query) -> User:
        if not isinstance(user, User):
            raise Broken("returned something other than a user")
        plan, card_number, nickname = user.plan, user.card_number, user.nickname
        if not (
            isinstance(plan, str) and isinstance(card_number, str) and isinstance(nickname, str)
        ):
            raise Broken("returned a user with a field that is missing or not text")
        if self._folds_nicknames:
            user = folded(user)
        if query.text not in (f"@{user.nickname}", user.card_number):
            is_in_other_case = query.text.lower() == f"@{user.nickname}".lower()
            hint = "; nickname_case may be the reason" if is_in_other_case else ""
            raise Broken(f"returned a user other than requested{hint}")
        if not self._accepts(user):
            raise Broken("returned a user whose nickname or card number is not in a valid format")
        if not is_plan(user.plan):
            raise Broken(f"returned a user whose plan is not {PLAN_FORMAT}")
        if user.profile_url is not None and not is_profile_url(user.profile_url):
            raise Broken(f"returned a user whose profile_url is not {PROFILE_URL_FORMAT}")
        return user

    def _on_available(self, verified: bool) -> None:  # noqa: FBT001 - the signature of `on_available`
        if not verified:
            self.breaker.retry()
            return
        self.breaker.close()
        self._on_result(BackendCall(self.name, "verified", 0.0, "verified"))

    def _record_failure(self, permit: Permit) -> None:
        if self.breaker.failed(permit):
            text = "backend %s: %s after %d failures; next probe in %.2g s"
            _log.warning(text, self.name, _OPEN, self.breaker.failures, self.breaker.next_probe)

    def _log_failure(self, error: LookupFailed) -> None:
        # Only equal log lines are deduplicated, and the text of an open circuit contains a time.
        reason = _OPEN if error.reason.startswith(_OPEN) else error.reason
        where = f"\n{format_traceback(error.__cause__)}" if error.__cause__ else ""
        level = logging.WARNING if isinstance(error, Unavailable) else logging.ERROR
        _log.log(level, "backend %s: %s%s", self.name, reason, where)
        self._failing = self._failing or isinstance(error, Unavailable)


def outcome_of(end: Answer | LookupFailed | None) -> tuple[str, CallResult]:
    """Return the outcome of a call, as a phrase for the operator and as a `CallResult`."""
    if isinstance(end, Broken):
        return end.reason, "broken"
    if isinstance(end, LookupFailed):
        return end.reason, "rejected" if isinstance(end, NotCalled) else "unavailable"
    if end is _EXCLUDED:
        return "not called: its match excludes the query", "not_found"
    return ("not known here", "not_found") if end is None or not end.found else ("found", "found")

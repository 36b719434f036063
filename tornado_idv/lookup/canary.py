"""Canaries: users that a backend must find before its "not known here" is trusted.

A source that loses its users, or the right to read them, may report no error, and find no user.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from math import inf
from typing import Any

from tornado_idv.errors import LookupFailed, Unavailable, Untrusted
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.model import Answer, ByCard, ByNickname, Query

_log = logging.getLogger(__name__)
_CHECK_INTERVAL = 30.0
"""Minimum seconds from the start of a lookup of canaries until `Canary.check` starts the next."""
_Outcome = LookupFailed | Collection[str | None]
"""The result of a lookup of all canaries: the servers that found them, or the failure."""
KINDS: Mapping[type[Query], str] = {ByNickname: "nickname", ByCard: "card_number"}
"""For each kind of query that can have canaries, its name in options and metrics."""


def canaries_of(options: BackendOptions) -> dict[str, Query]:
    """Return the queries that look up the canaries of a backend. The keys are names for messages.

    A name never contains a card number.
    """
    found: dict[str, Query] = {}
    for number, each in enumerate(options.canaries, start=1):
        name = f"canary @{each.nickname}" if each.nickname else f"canary {number}"
        if each.nickname:
            found[name] = ByNickname(each.nickname)
        if each.card_number:
            by_card = f"{name} (by card number)"
            if by_card in found:
                by_card = f"canary {number} (by card number)"
            found[by_card] = ByCard(each.card_number)
    return found


def absent_canaries_of(options: BackendOptions) -> dict[str, Query]:
    """Return the queries for users who must not be found. The keys are names for messages."""
    found: dict[str, Query] = {}
    for number, each in enumerate(options.canaries, start=1):
        if (text := each.absent or "").startswith("@"):
            found[f"canary {text} (absent)"] = ByNickname(text[1:])
        elif text:
            found[f"canary {number} (absent)"] = ByCard(text)
    return found


async def keep_checking(canaries: Callable[[], Iterable[Canary]]) -> None:
    """Check the canaries in a loop, so that a problem is noticed even without requests."""
    while True:
        for each in canaries():
            each.check()
        await asyncio.sleep(5)  # `check` looks a canary up 30 s after its last lookup


class Canary:
    """The canaries of one backend for one ``kind`` of query. All of them must be found.

    The ``absent`` users are the same for each kind, and must not be found. ``look_up`` takes a
    query and a deadline. ``timer`` returns seconds. A single ``task`` looks the canaries up, and
    callers of `confirm` share its result. If the running lookup of the canaries began too early to
    confirm the answer of a caller, this caller waits for the next one.
    """

    def __init__(
        self,
        options: BackendOptions,
        kind: type[Query],
        absent: dict[str, Query],
        look_up: Callable[[Query, float], Coroutine[Any, Any, Answer | None]],
        timer: Callable[[], float],
    ) -> None:
        self._options = options
        self.queries = {
            name: each for name, each in canaries_of(options).items() if isinstance(each, kind)
        } | absent
        self._absent = absent
        with_plan = [each for each in options.canaries if each.plan]
        self._plans = {f"@{each.nickname}": each.plan for each in with_plan}
        self._plans |= {each.card_number or "": each.plan for each in with_plan}
        self.judges_found = any(each.plan or each.absent for each in options.canaries)
        """Whether "found" needs confirmation by the canaries, as "not found" always does."""
        self._success = ", ".join(self.queries) + (" confirmed" if self.judges_found else " found")
        self._max_age = min(each.max_age for each in options.canaries)
        self._look_up = look_up
        self._timer = timer
        self.problem: str | None = None
        """The unexpected result in the last lookup of the canaries, as a phrase, or ``None``.

        A failed lookup of the canaries does not change the value."""
        self.task: asyncio.Task[None] | None = None
        self._found: dict[str | None, tuple[float, float]] = {}
        """For each server, start and end of the last lookup that confirmed all canaries on it."""
        self._began = -inf
        self._running: asyncio.Future[_Outcome] | None = None
        self._next: asyncio.Future[_Outcome] | None = None

    def share_state_of(self, other: Canary) -> None:
        """Share the results of a `Canary` with the same options, also of its running lookup."""
        self.problem, self._began, self._found = other.problem, other._began, other._found

    @property
    def found(self) -> bool:
        """Return whether a server has confirmed the canaries since the last unexpected result."""
        return bool(self._found)

    @property
    def summary(self) -> str:
        """The confirmed canaries and the age of the confirmation, for the operator."""
        found_at = max((began for began, _ in self._found.values()), default=-inf)
        return f"{self._success} {self._timer() - found_at:.1f} s ago"

    def is_fresh(self, ended: float, began: float = inf, server: str | None = None) -> bool:
        """Return whether the canaries confirm a user's lookup on ``server``.

        The user's lookup lasted from ``began`` to ``ended``. The same server must have found the
        canaries before ``began``, because the source may have been empty until it found them. The
        lookup of the canaries must have begun at most ``max_age`` before ``ended``.
        """
        found_at, found_by = self._found.get(server, (-inf, inf))
        return found_by <= began and self._covers(found_at, ended)

    async def confirm(
        self, ended: float, deadline: float, server: str | None = None
    ) -> Collection[str | None]:
        """Return the servers that found the canaries. If the last result is too old, look them up.

        The canaries must confirm a user's lookup on ``server``; ``ended`` is its end. ``deadline``
        is a time of the running loop's clock. Raises `Unavailable`.
        """
        if self.is_fresh(ended, server=server):
            return {server}
        running = self._running
        call = running if running and self._covers(self._began, ended) else self._start()
        await asyncio.wait([call], timeout=deadline - asyncio.get_running_loop().time())
        if not call.done():
            raise Unavailable(f"{next(iter(self.queries))}: no answer within the request's time")
        if isinstance(outcome := call.result(), LookupFailed):
            raise outcome.copy()
        return outcome

    async def look_up(self, name: str) -> str | None:
        """Look one canary up by its name in `queries`. Return the server that responded.

        Raises `LookupFailed`, in particular `Untrusted` for an unexpected result.
        """
        # The guard spends up to half of this on the wait for a permit: the rest is one timeout.
        deadline = asyncio.get_running_loop().time() + 2 * self._options.timeout
        try:
            answer = await self._look_up(query := self.queries[name], deadline)
        except LookupFailed as error:
            error.reason = f"{name}: {error.reason}"
            raise
        user = None if answer is None else answer.user
        problem = "" if user else "is not found"
        if name in self._absent:
            problem = "is found" if user else ""
        elif user and self._plans.get(query.text) not in (None, user.plan):
            problem = f"does not have the plan {self._plans[query.text]}"
        if problem:
            what = "answers are" if self.judges_found else '"not found" is'
            raise Untrusted(f"{name} {problem}: its {what} not trusted")
        return None if answer is None else answer.server

    def check(self) -> None:
        """Start a lookup of the canaries, unless the last lookup is recent or still runs."""
        if self._timer() - self._began >= _CHECK_INTERVAL and self.task is None:
            self._start()

    def _covers(self, began: float, ended: float) -> bool:
        # With `max_age` 0, only a later lookup of the canaries counts, even at the same clock time.
        return self._max_age > 0 and ended - began <= self._max_age

    def _start(self) -> asyncio.Future[_Outcome]:
        """Start a lookup of the canaries, now or after the running one. Return its future."""
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
        if self.task is None:
            self.task = loop.create_task(self._run())
        return self._next

    async def _run(self) -> None:
        """Look the canaries up. Repeat this while callers of `_start` wait for a result."""
        try:
            while self._next is not None:
                self._running, self._next = self._next, None
                self._began = self._timer()
                self._running.set_result(await self._find_all())
        finally:
            self._running = self.task = None

    async def _find_all(self) -> _Outcome:
        """Look all canaries up. Return the servers that found them, or the failure."""
        servers = set[str | None]()
        for name in self.queries:
            try:
                servers.add(await self.look_up(name))
            except Untrusted as error:
                if self.problem is None:
                    _log.error("backend %s: %s", self._options.name, error.reason)
                self.problem = error.reason
                self._found.clear()
                return error
            except LookupFailed as error:
                return Unavailable(error.reason, retry_after=error.retry_after)
        if self.problem is not None:
            _log.info("backend %s: %s again", self._options.name, self._success)
        fresh = {k: v for k, v in self._found.items() if self._covers(v[0], self._timer())}
        # If two servers responded, neither of them has confirmed all canaries.
        found = dict.fromkeys(servers, (self._began, self._timer())) if len(servers) == 1 else {}
        self.problem = None
        self._found.clear()
        self._found.update(fresh | found)
        return servers

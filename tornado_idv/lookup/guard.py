"""One backend behind its guard: it answers in time and in shape, or could not tell.

The guard holds what a backend may take of us (time, places) and what we may ask of it (a
circuit breaker, a pattern). Only a failure of the backend's own counts against it: never
what was asked, a caller who left, our own limits, or "not known here".
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from math import inf
from typing import Any

from tornado_idv.backend import AnyBackend
from tornado_idv.errors import Broken, LookupFailed, Unavailable, format_traceback
from tornado_idv.hookspecs import hookimpl
from tornado_idv.lookup.bulkhead import Bulkhead
from tornado_idv.lookup.circuit_breaker import Breaker, BreakerLimits, Pass
from tornado_idv.lookup.deadlines import Deadlines, TimeLimit
from tornado_idv.model import Answer, ByNickname, Query, User

_log = logging.getLogger(__name__)
_TOO_LATE = 0.05
"""Seconds left of a request with which a backend is not asked any more."""
_QUIET = 10.0
"""Seconds for which the same trouble of a backend is not logged again."""


@dataclass(frozen=True, slots=True)
class Asked:
    """That a backend was asked: what it said, in a phrase, after how many seconds."""

    backend: str
    said: str
    seconds: float


class Guard:
    """The plugin by which a configured backend takes part in the dispatch.

    Whatever the backend does, its lookups end within its ``timeout`` (seconds) as a
    `User` that was asked for, as "not known here", or as `Unavailable` or `Broken`
    in the backend's name. ``accepts`` says whether a record is one that can be answered,
    ``told``, if given, hears of every end. ``ttl`` is for how many seconds a user is
    remembered unless the backend's options or its answer say otherwise; ``timer`` gives seconds.
    """

    def __init__(
        self,
        backend: AnyBackend,
        accepts: Callable[[User], bool],
        told: Callable[[Asked], None] | None = None,
        *,
        ttl: float = 300.0,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        options = backend.options
        self.backend = backend
        self.name = backend.name
        self._serves = backend.serves
        self._accepts = accepts
        self._told = told
        self._timer = timer
        self._timeout = options.timeout
        self._ttl = options.cache_ttl
        self._longest = ttl if options.cache_ttl is None else options.cache_ttl
        self._continues = options.on_unavailable == "continue"
        self._match = re.compile(options.match, re.ASCII) if options.match else None
        self._breaker = Breaker(BreakerLimits(**options.breaker.model_dump()), timer)
        self._deadlines = Deadlines(TimeLimit.end)
        self._places = Bulkhead(options.max_concurrent)
        self._told_until: dict[str, float] = {}
        self._in_trouble = False

    @hookimpl
    def idv_identify(
        self, query: Query, deadline: float
    ) -> Coroutine[Any, Any, Answer | None] | None:
        """Asks the backend, unless it does not serve this kind of query."""
        return self._ask(query, deadline) if type(query) in self._serves else None

    async def _ask(self, query: Query, deadline: float) -> Answer | None:
        if self._match is not None and not self._match.fullmatch(query.text):
            return None
        began = 0.0 if self._told is None else self._timer()
        said = "gave up: the caller left"
        try:
            answer = await self._find(query, deadline)
            said = "not known here" if answer is None or answer.user is None else "found"
            if self._in_trouble:
                self._log_recovery()
        except LookupFailed as error:
            said = error.reason
            self._log_trouble(error)
            error.backend = self.name
            error.continues = self._continues and isinstance(error, Unavailable)
            raise
        finally:
            if self._told is not None:
                self._told(Asked(self.name, said, self._timer() - began))
        return answer

    async def _find(self, query: Query, deadline: float) -> Answer | None:
        if not self._places.enter():
            await self._queue(deadline)
        try:
            now = asyncio.get_running_loop().time()
            if deadline - now < _TOO_LATE:
                raise Unavailable(
                    "not asked: too little of the request's time was left",
                    counts_against_breaker=False,
                )
            entered = self._breaker.enter()
            if entered is None:
                raise Unavailable(
                    "not asked: it failed too often, and is tried again soon",
                    counts_against_breaker=False,
                )
            return await self._counted(query, now, deadline, entered)
        finally:
            self._places.leave()

    async def _queue(self, deadline: float) -> None:
        """Waits for one of the ``max_concurrent`` places, behind at most as many others."""
        if not self._places.has_queue_left:
            raise Unavailable(
                "not asked: too many lookups are under way", counts_against_breaker=False
            )
        try:
            await self._places.wait(until=deadline - _TOO_LATE)
        except TimeoutError:
            raise Unavailable(
                "not asked: too many lookups were under way", counts_against_breaker=False
            ) from None

    async def _counted(
        self, query: Query, now: float, deadline: float, entered: Pass
    ) -> Answer | None:
        """Asks, and tells the breaker how it ended."""
        tell = self._breaker.abandoned
        try:
            answer = await self._call(query, now, deadline)
            tell = self._breaker.succeeded
        except LookupFailed as error:
            if error.counts_against_breaker:
                down = isinstance(error, Unavailable)
                tell = self._breaker.failed if down else self._breaker.succeeded
            raise
        finally:
            tell(entered)
        return answer

    async def _call(self, query: Query, now: float, deadline: float) -> Answer | None:
        """Calls the backend; whatever it raises comes out as `Unavailable` or `Broken`."""
        own = now + self._timeout
        limit = TimeLimit(self._deadlines, min(own, deadline))
        try:
            with limit:
                found = await self.backend.find(query)
        except LookupFailed:
            raise
        except TimeoutError:
            if limit.is_over and deadline < own:
                raise Unavailable(
                    "no answer within the request's time", counts_against_breaker=False
                ) from None
            raise Unavailable(f"no answer within {self._timeout:g} s") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Broken("its own work was cancelled") from None
        except (Exception, SystemExit) as error:
            raise Broken(f"failed with {type(error).__name__}") from error
        return self._as_answer(found, query)

    def _as_answer(self, found: object, query: Query) -> Answer | None:
        if found is None:
            return None
        if not isinstance(found, Answer):
            return Answer(self._checked(found, query), self.name, ttl=self._ttl)
        if not _is_time(found.ttl):
            raise Broken("answered a time to live that is none")
        if found.user is None:
            return Answer(None, ttl=found.ttl, storable=found.storable)
        ttl = self._ttl if found.ttl is None else min(self._longest, found.ttl)
        user = self._checked(found.user, query)
        return Answer(user, self.name, ttl=ttl, storable=found.storable)

    def _checked(self, user: object, query: Query) -> User:
        if not isinstance(user, User):
            raise Broken("answered something that is no user")
        if not _is_whole(user):
            raise Broken("answered a user with a field missing or not text")
        if isinstance(query, ByNickname):
            fits = user.nickname == query.nickname
        else:
            fits = user.card_number == query.card_number
        if not fits:
            raise Broken("answered another user than asked for")
        if not self._accepts(user):
            raise Broken("answered a user whose nickname or card number is in no valid form")
        return user

    def _log_trouble(self, error: LookupFailed) -> None:
        """One line for each kind of trouble in a while, however many lookups meet it."""
        now = self._timer()
        if now < self._told_until.get(error.reason, now):
            return
        self._told_until[error.reason] = now + _QUIET
        where = f"\n{format_traceback(error.__cause__)}" if error.__cause__ else ""
        level = logging.WARNING if isinstance(error, Unavailable) else logging.ERROR
        _log.log(level, "backend %s: %s%s", self.name, error.reason, where)
        self._in_trouble = self._in_trouble or isinstance(error, Unavailable)

    def _log_recovery(self) -> None:
        self._in_trouble = False
        _log.info("backend %s answers again", self.name)


def _is_time(seconds: object) -> bool:
    """Whether it is a number of seconds, or none is said."""
    return seconds is None or (
        isinstance(seconds, (int, float)) and 0 <= seconds < inf  # which is false of NaN
    )


def _is_whole(user: User) -> bool:
    """Whether its fields are text, not empty, that UTF-8 can write; a lone surrogate it cannot."""
    fields = [user.plan, user.card_number, user.nickname]
    if user.profile_url is not None:
        fields.append(user.profile_url)
    try:
        text = "".join(fields)
        return all(fields) and (text.isascii() or text.encode() != b"")
    except (TypeError, UnicodeEncodeError):
        return False

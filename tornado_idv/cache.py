"""Answers remembered: found and not found apart, and one flight per query.

An answer is *fresh* for its TTL. A found one is kept longer, to be served *stale* while
the backends cannot tell. No failure is kept beyond its short memo, and no answer that was
begun before a purge: what a purge forgets never comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Annotated, Any, NamedTuple

from cachetools import Cache, LRUCache, TTLCache
from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field

from tornado_idv.deadlines import Deadlines
from tornado_idv.errors import CouldNotTell
from tornado_idv.model import Answer, Query
from tornado_idv.options import Duration, Options, WholeNumber

_Count = Annotated[WholeNumber, Field(ge=1)]
_Fraction = Annotated[float, Field(ge=0, le=1)]
Ask = Callable[[Query], Coroutine[Any, Any, Answer]]

_REFRESHES_WAITING = 1000
_PLACE_HOLDS = 10.0
"""Seconds for which a hit leaves the order of use as it is, once another has renewed it."""


class CacheLimits(Options):
    """The cache of answers; times are in seconds."""

    ttl: Duration = 300.0
    """How long a found user is served from the cache."""
    negative_ttl: Duration = 30.0
    """How long "not found" is served from the cache."""
    max_entries: _Count = 100_000
    """The maximum number of found users."""
    max_negative_entries: _Count = 20_000
    """The maximum number of "not found" answers; separate, so that guessing cannot evict users."""
    jitter: _Fraction = 0.1
    """The fraction of a TTL that is taken off at random, so that entries expire apart."""
    stale_if_error: Duration = 3600.0
    """How long after its TTL a found user is still served while backends are unavailable."""
    refresh_ahead: _Fraction = 0.8
    """The fraction of the TTL after which a hit starts a refresh in the background."""
    degraded_ttl: Duration = 30.0
    """How long a user is cached who was found after an unavailable backend was skipped."""
    failure_memo: Duration = 2.0
    """How long a failed lookup is answered 503 without querying the backends again."""


class _Generation:
    """What one backend answered since its last purge."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False


class _Entry(Struct, eq=False, gc=False):
    """An answer, until when it is fresh, when to ask again ahead of that, when it is gone.

    From ``look_at`` on a hit has more to do than to hand the answer out.
    """

    answer: Answer
    generation: _Generation
    fresh_until: float
    refresh_at: float
    gone_at: float
    look_at: float


class _Entries(LRUCache[str, _Entry]):
    """Entries by the text of their query: a query's own hash is not remembered by it.

    An entry that is gone stays until newer ones need its place. (`TLRUCache` looks for those
    as each entry is stored, for a multiple of the time, and takes them out all at once.)
    """

    def find(self, text: str) -> _Entry | None:
        """The entry, if there is one; its place in the order of use stays as it was."""
        return Cache.__getitem__(self, text) if text in self else None

    def renew(self, text: str) -> None:
        """Makes an entry the last to make room for others."""
        self[text]

    def drop(self, text: str) -> None:
        """Removes an entry if there is one."""
        if text in self:
            del self[text]

    def drop_user(self, named: Query) -> None:
        """Removes what tells of the user so named; looks at every entry, about 1 µs each."""
        for text in list(self):
            if Cache.__getitem__(self, text).answer.is_of(named):  # leaves the order of use alone
                del self[text]


class _Failures(TTLCache[str, CouldNotTell | None]):
    """Failures by the text of their query, for a while."""

    def find(self, text: str) -> CouldNotTell | None:
        """The failure, if there is one."""
        return self[text] if Cache.__contains__(self, text) else None

    def __missing__(self, key: str) -> None:
        """Its time has run out."""


class _Passenger(NamedTuple):
    """One who waits for a flight; ``joined`` says that another one had it begun."""

    landed: asyncio.Future[Answer]
    flight: _Flight
    joined: bool


class _Flight:
    """One asking, shared by all who want its answer; it goes on when they leave.

    Once it is not ``current`` any more, nobody boards it, and what comes of it is not remembered.
    """

    __slots__ = ("_deadlines", "_passengers", "current", "task", "text")

    def __init__(self, text: str, deadlines: Deadlines[_Passenger]) -> None:
        self.text = text
        self.current = True
        self.task: asyncio.Task[None]
        self._deadlines = deadlines
        self._passengers: list[_Passenger] = []

    def board(self, landed: asyncio.Future[Answer], until: float, *, joined: bool) -> None:
        """Has the answer put into ``landed``, if it is here in time."""
        passenger = _Passenger(landed, self, joined)
        self._passengers.append(passenger)
        self._deadlines.add(passenger, until)

    def land(self, answer: Answer) -> None:
        """Gives all who wait the answer."""
        for passenger in self._waiting():
            joined = passenger.joined
            passenger.landed.set_result(replace(answer, coalesced=True) if joined else answer)

    def crash(self, error: Exception) -> None:
        """Tells all who wait that there is none, and why."""
        for passenger in self._waiting():
            passenger.landed.set_exception(error)

    def cancel(self) -> None:
        """Ends the waiting, as the service does."""
        for passenger in self._waiting():
            passenger.landed.cancel()

    def _waiting(self) -> Iterator[_Passenger]:
        for passenger in self._passengers:
            self._deadlines.drop(passenger)
            if not passenger.landed.done():
                yield passenger


class AnswerCache:
    """Answers by query.

    ``timer`` gives seconds and never goes back; ``chance`` gives numbers from 0 to 1.
    """

    def __init__(
        self,
        limits: CacheLimits,
        timer: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.limits = limits
        self.timer = timer
        self._chance = chance
        self._found = _Entries(limits.max_entries)
        self._absent = _Entries(limits.max_negative_entries)
        self._failures = _Failures(limits.max_negative_entries, limits.failure_memo, timer)
        self._flights: dict[str, _Flight] = {}
        self._deadlines = Deadlines(self._give_up)
        self._generations: dict[str | None, _Generation] = {}
        self.due: asyncio.Queue[Query] = asyncio.Queue(_REFRESHES_WAITING)
        """Queries whose answers are to be asked for again, ahead of their time."""

    def get(self, query: Query) -> Answer | None:
        """The remembered answer, if it is fresh; no I/O, no waiting, no task."""
        text = query.text
        entry = self._found.find(text) or self._absent.find(text)
        if entry is None or entry.generation.over:
            return None
        now = self.timer()
        if now >= entry.look_at:
            if now >= entry.fresh_until:
                return None
            self._look_after(query, entry, now)
        return entry.answer

    def stale(self, query: Query) -> Answer | None:
        """The found answer that may be served while the backends cannot tell, if any."""
        entry = self._found.get(query.text)
        if entry is None or entry.generation.over:
            return None
        now = self.timer()
        if now < entry.fresh_until:
            return entry.answer
        return replace(entry.answer, stale=True) if now < entry.gone_at else None

    def fetch(self, query: Query, ask: Ask, patience: float) -> asyncio.Future[Answer]:
        """Asks once for all who want the same answer now, and remembers what came of it.

        A caller that leaves does not end the flight for the others. One that has waited for
        ``patience`` seconds gets a `TimeoutError`, and the next caller asks anew. The future
        raises what ``ask`` raises; a `CouldNotTell` also for a while after, without asking.
        """
        loop, text = asyncio.get_running_loop(), query.text
        landed: asyncio.Future[Answer] = loop.create_future()
        failure = self._failures.find(text)
        if failure is not None:
            landed.set_exception(failure.again())
            return landed
        joined = self._flights.get(text)
        flight = joined or self._launch(query, text, ask)
        flight.board(landed, loop.time() + patience, joined=joined is not None)
        return landed

    async def refresh(self, query: Query, ask: Ask, patience: float) -> None:
        """Asks again for an answer that is fresh still; a failure leaves it as it is.

        After ``patience`` seconds it is not waited for any longer.
        """
        text = query.text
        if text not in self._flights:
            flight = self._launch(query, text, ask)
            await asyncio.wait([flight.task], timeout=patience)
            self._abandon(flight)

    def purge(self) -> None:
        """Forgets everything.

        Here as in the other purges, flights under way end for those who wait for them,
        and leave no entry.
        """
        self._found.clear()
        self._forget_the_rest()

    def purge_backend(self, backend: str) -> None:
        """Forgets what one backend answered, and every "not found"."""
        generation = self._generations.pop(backend, None)
        if generation is not None:
            generation.over = True
        self._forget_the_rest()

    def purge_user(self, query: Query) -> None:
        """Forgets a user, by nickname and by card, whichever of them is named."""
        self._found.drop_user(query)
        self._forget_the_rest()

    def _forget_the_rest(self) -> None:
        self._absent.clear()
        self._failures.clear()
        for flight in self._flights.values():
            flight.current = False
        self._flights.clear()

    def _look_after(self, query: Query, entry: _Entry, now: float) -> None:
        """Does what a hit has to do once in a while."""
        entries = self._found if entry.answer.found else self._absent
        entries.renew(query.text)
        if now >= entry.refresh_at:
            entry.refresh_at = entry.fresh_until
            with contextlib.suppress(asyncio.QueueFull):
                self.due.put_nowait(query)
        entry.look_at = min(now + _PLACE_HOLDS, entry.refresh_at)

    def _launch(self, query: Query, text: str, ask: Ask) -> _Flight:
        flight = self._flights[text] = _Flight(text, self._deadlines)
        flying = self._fly(query, flight, ask)
        flight.task = asyncio.get_running_loop().create_task(flying)
        return flight

    async def _fly(self, query: Query, flight: _Flight, ask: Ask) -> None:
        try:
            answer = await ask(query)
        except CouldNotTell as error:
            if flight.current:
                self._failures[flight.text] = error.again()  # without its frames
            flight.crash(error)
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            flight.crash(error)
        except asyncio.CancelledError:
            flight.cancel()
            raise
        else:
            if flight.current:
                self._store(flight.text, answer)
            flight.land(answer)
        finally:
            self._abandon(flight)

    def _abandon(self, flight: _Flight) -> None:
        """Lets the next caller ask anew; those who wait for this flight go on waiting."""
        if flight.current:
            flight.current = False
            del self._flights[flight.text]

    def _give_up(self, passenger: _Passenger) -> None:
        """A passenger has waited too long."""
        self._abandon(passenger.flight)
        if not passenger.landed.done():
            passenger.landed.set_exception(TimeoutError())

    def _store(self, text: str, answer: Answer) -> None:
        limits, now = self.limits, self.timer()
        ttl = self._ttl(answer) * (1 - limits.jitter * self._chance())
        if not answer.storable:
            self._found.drop(text)
            self._absent.drop(text)
            return
        fresh_until = refresh_at = gone_at = now + ttl
        entries, others = self._absent, self._found
        if answer.found:
            entries, others = others, entries
            refresh_at = now + ttl * limits.refresh_ahead
            gone_at += limits.stale_if_error
        generation = self._generations.get(answer.backend)
        if generation is None:
            generation = self._generations[answer.backend] = _Generation()
        others.drop(text)
        entries[text] = _Entry(answer, generation, fresh_until, refresh_at, gone_at, now)

    def _ttl(self, answer: Answer) -> float:
        limits = self.limits
        ttl = answer.ttl
        if ttl is None:
            ttl = limits.ttl if answer.found else limits.negative_ttl
        return min(ttl, limits.degraded_ttl) if answer.degraded else ttl

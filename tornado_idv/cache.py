"""Answers remembered: found and not found apart, and one flight per query.

It never remembers a failure, and no answer that was begun before a purge.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from cachetools import TLRUCache

from tornado_idv.model import Answer, Query

Ask = Callable[[Query], Coroutine[Any, Any, Answer]]


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """How long and how many: seconds and entries.

    "Not found" has limits of its own, so that guessing cannot push users out.
    """

    ttl: float = 300.0
    negative_ttl: float = 30.0
    max_entries: int = 100_000
    max_negative_entries: int = 20_000


@dataclass(frozen=True, slots=True)
class _Entry:
    answer: Answer
    ttl: float
    generation: int


class _Entries(TLRUCache[Query, _Entry | None]):
    """Gives ``None`` for what is absent or past its time.

    `TLRUCache.get` looks twice, and raises when the time runs out in between.
    """

    def __missing__(self, key: Query) -> None:
        return None


class AnswerCache:
    """Answers by query. ``timer`` gives seconds and never goes back."""

    def __init__(self, limits: CacheLimits, timer: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.timer = timer
        self._found = _Entries(limits.max_entries, _expiry, timer)
        self._absent = _Entries(limits.max_negative_entries, _expiry, timer)
        self._flights: dict[Query, asyncio.Task[Answer]] = {}
        self._generations: dict[str | None, int] = {}

    def get(self, query: Query) -> Answer | None:
        """The remembered answer, if it is good still; no I/O, no waiting."""
        entry = self._found[query] or self._absent[query]
        if entry is None or entry.generation != self._generation(entry.answer.backend):
            return None
        return entry.answer

    async def fetch(self, query: Query, ask: Ask, ttl: Callable[[Answer], float]) -> Answer:
        """Asks once for all who want the same answer now, and remembers it.

        ``ttl`` says how many seconds an answer is good for. A caller that leaves does
        not end the flight for the others. Raises what ``ask`` raises.
        """
        flight = self._flights.get(query)
        if flight is None:
            flight = asyncio.create_task(self._fly(query, ask, ttl))
            self._flights[query] = flight
            flight.add_done_callback(_retrieve)
        return await asyncio.shield(flight)

    def purge(self, backend: str | None = None) -> None:
        """Forgets what one backend answered and every "not found"; or all, without a name.

        Flights under way end for those who wait for them, and leave no entry.
        """
        if backend is None:
            self._found.clear()
        else:
            self._generations[backend] = self._generation(backend) + 1
        self._absent.clear()
        self._flights.clear()

    async def _fly(self, query: Query, ask: Ask, ttl: Callable[[Answer], float]) -> Answer:
        flight = asyncio.current_task()
        try:
            answer = await ask(query)
            if self._flights.get(query) is flight:
                self._store(query, answer, ttl(answer))
        finally:
            if self._flights.get(query) is flight:
                del self._flights[query]
        return answer

    def _store(self, query: Query, answer: Answer, ttl: float) -> None:
        fits, other = (self._found, self._absent) if answer.found else (self._absent, self._found)
        with contextlib.suppress(KeyError):
            del other[query]
        fits[query] = _Entry(answer, ttl, self._generation(answer.backend))

    def _generation(self, backend: str | None) -> int:
        return self._generations.get(backend, 0)


def _expiry(_query: Query, entry: _Entry | None, now: float) -> float:
    return now + entry.ttl if entry else now


def _retrieve(flight: asyncio.Task[Answer]) -> None:
    """Takes note of the outcome, so that a flight nobody waits for is no warning."""
    if not flight.cancelled():
        flight.exception()

"""Answers, an `AnswerCache` whose time a test moves, and callers of it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from support.fakes.clock_and_backends import Source, Ticker, steady_cache
from tornado_idv.errors import LookupFailed
from tornado_idv.lookup.cache import AnswerCache, CacheLimits
from tornado_idv.lookup.single_flight import SingleFlight
from tornado_idv.model import Answer, ByCard, ByNickname, Query, User

ALICE = ByNickname("alice")
ALICE_S_CARD = ByCard("1")
BOB = ByNickname("bob")
FOUND = Answer(User("Free", "1", "alice"), "members")
ELSEWHERE = Answer(User("Pro", "1", "alice"), "crm")
FOUND_BOB = Answer(User("Free", "2", "bob"), "members")
ABSENT = Answer(None)
TIMEOUT = 60.0
Ask = Callable[[Query], Coroutine[Any, Any, Answer]]
LIMITS = CacheLimits(ttl=300, negative_ttl=30, max_entries=10, max_negative_entries=3)


class Flights(SingleFlight):
    """A single flight whose lookups are those of its last caller."""

    ask: Ask

    def __init__(self, cache: AnswerCache) -> None:
        super().__init__(cache, lambda query, _: self.ask(query), TIMEOUT, lambda *_: None)


def flights(cache: AnswerCache) -> Flights:
    known: Flights = vars(cache).setdefault("flights", Flights(cache))
    return known


def fetch(
    cache: AnswerCache, query: Query, ask: Ask, timeout: float = TIMEOUT
) -> asyncio.Future[Answer]:
    """A caller past a cache: ``ask`` is called unless a lookup is running."""
    asked = flights(cache)
    asked.ask, asked._timeout = ask, timeout  # noqa: SLF001 - as another directory would have it
    return asked.add(query)


async def refresh(cache: AnswerCache, query: Query, ask: Ask) -> None:
    asked = flights(cache)
    asked.ask = ask
    await asked.refresh(query)


async def remember(cache: AnswerCache, query: Query, answer: Answer) -> None:
    await fetch(cache, query, Source(answer).ask)


def begin(cache: AnswerCache, source: Source, query: Query = ALICE) -> asyncio.Future[Answer]:
    return fetch(cache, query, source.ask)


async def held(cache: AnswerCache, source: Source) -> asyncio.Future[Answer]:
    source.hold()
    caller = begin(cache, source)
    await asyncio.wait_for(source.begun.wait(), timeout=5)
    return caller


async def leave(caller: asyncio.Future[Answer]) -> None:
    caller.cancel()
    await asyncio.wait([caller], timeout=5)
    assert caller.cancelled()


async def failure(cache: AnswerCache, source: Source, query: Query = ALICE) -> LookupFailed:
    with pytest.raises(LookupFailed) as caught:
        await fetch(cache, query, source.ask)
    return caught.value


@pytest.fixture
def ticker() -> Ticker:
    return Ticker()


@pytest.fixture
def cache(ticker: Ticker) -> AnswerCache:
    return steady_cache(LIMITS, ticker)

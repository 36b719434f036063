"""Answers, and callers of an `AnswerCache`."""

import asyncio

import pytest

from support.fakes.clock_and_backends import Source
from tornado_idv.errors import LookupFailed
from tornado_idv.lookup.cache import AnswerCache, CacheLimits
from tornado_idv.model import Answer, ByCard, ByNickname, Query, User

ALICE = ByNickname("alice")
ALICE_S_CARD = ByCard("1")
BOB = ByNickname("bob")
FOUND = Answer(User("Free", "1", "alice"), "members")
ELSEWHERE = Answer(User("Pro", "1", "alice"), "crm")
FOUND_BOB = Answer(User("Free", "2", "bob"), "members")
ABSENT = Answer(None)
TIMEOUT = 60.0
LIMITS = CacheLimits(ttl=300, negative_ttl=30, max_entries=10, max_negative_entries=3)


def as_is(query: Query, outcome: Answer | Exception) -> Answer:
    """What every caller makes of an outcome here: itself."""
    if isinstance(outcome, Answer):
        return outcome
    raise outcome


async def remember(cache: AnswerCache, query: Query, answer: Answer) -> None:
    await cache.fetch(query, Source(answer).ask, TIMEOUT, as_is)


def begin(cache: AnswerCache, source: Source, query: Query = ALICE) -> asyncio.Future[Answer]:
    """A caller of many: they come in the order in which they are begun."""
    return cache.fetch(query, source.ask, TIMEOUT, as_is)


async def held(cache: AnswerCache, source: Source) -> asyncio.Future[Answer]:
    """A caller who waits for a source that is asked and gives no answer yet."""
    source.hold()
    caller = begin(cache, source)
    await asyncio.wait_for(source.begun.wait(), timeout=5)
    return caller


async def leave(caller: asyncio.Future[Answer]) -> None:
    """The caller goes, and is gone."""
    caller.cancel()
    await asyncio.wait([caller], timeout=5)
    assert caller.cancelled()


async def failure(cache: AnswerCache, source: Source, query: Query = ALICE) -> LookupFailed:
    """Why there is no answer."""
    with pytest.raises(LookupFailed) as caught:
        await cache.fetch(query, source.ask, TIMEOUT, as_is)
    return caught.value

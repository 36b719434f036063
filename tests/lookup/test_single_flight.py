"""Concurrent callers with one query share one lookup."""

import asyncio
import gc

import pytest
from msgspec import structs

from support.fakes.caches import (
    ABSENT,
    ALICE,
    BOB,
    ELSEWHERE,
    FOUND,
    TIMEOUT,
    begin,
    fetch,
    flights,
    held,
    leave,
)
from support.fakes.clock_and_backends import LoopClock, Source, running
from tornado_idv.errors import Unavailable
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.model import Answer


async def test_500_concurrent_callers_start_one_lookup(cache: AnswerCache) -> None:
    source = Source(FOUND)
    first = await held(cache, source)
    others = [begin(cache, source) for _ in range(499)]
    asyncio.get_running_loop().call_soon(source.release)
    answers = await asyncio.wait_for(asyncio.gather(first, *others), timeout=5)
    assert answers == [FOUND] + [structs.replace(FOUND, coalesced=True)] * 499
    assert source.asked == 1
    assert cache.get(ALICE) is FOUND


async def test_callers_that_leave_affect_no_other(cache: AnswerCache) -> None:
    source = Source(FOUND)
    leader = await held(cache, source)
    follower = begin(cache, source)
    await leave(leader)
    source.release()
    answer = await asyncio.wait_for(follower, timeout=5)
    assert (answer.user, answer.coalesced) == (FOUND.user, True)
    cache.apply(Purge())
    await leave(await held(cache, source))
    source.release()
    assert (await fetch(cache, ALICE, source.ask)).found
    assert cache.get(ALICE) is FOUND
    assert source.asked == 2


async def test_a_failure_without_waiters_logs_nothing(
    cache: AnswerCache, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(Unavailable("down"))
    leader = await held(cache, source)
    (flight,) = running(flights(cache))
    await leave(leader)
    source.release()
    await asyncio.wait([flight], timeout=5)
    del flight
    gc.collect()
    assert not caplog.records


async def test_service_shutdown_cancels_the_lookup_and_every_waiter(cache: AnswerCache) -> None:
    source = Source(FOUND)
    callers = [await held(cache, source), begin(cache, source)]
    (flight,) = running(flights(cache))
    flight.cancel()
    await asyncio.wait(callers, timeout=5)
    assert all(each.cancelled() for each in callers)
    source.release()
    assert await fetch(cache, ALICE, source.ask) is FOUND
    assert source.asked == 2


@pytest.mark.parametrize("late", [FOUND, ABSENT], ids=["found", "not found"])
async def test_call_that_took_too_long_changes_nothing(cache: AnswerCache, late: Answer) -> None:
    old = Source(late)
    old.hold()
    early = [fetch(cache, ALICE, old.ask, 0), begin(cache, old)]
    (flight,) = running(flights(cache))
    for caller in early:
        with pytest.raises(Unavailable, match="no answer within"):
            await caller
    assert await fetch(cache, ALICE, Source(ELSEWHERE).ask) is ELSEWHERE
    old.release()
    await flight
    assert cache.get(ALICE) is ELSEWHERE


async def test_timed_out_waiter_does_not_end_a_later_lookup(cache: AnswerCache) -> None:
    old, later, clock = Source(FOUND), Source(ELSEWHERE), LoopClock()
    old.hold()
    impatient = fetch(cache, ALICE, old.ask, TIMEOUT / 2)
    await old.begun.wait()
    (flight,) = running(flights(cache))
    cache.apply(Purge())
    second = await held(cache, later)
    await clock.advance(0.6 * TIMEOUT)
    with pytest.raises(Unavailable, match="no answer within"):
        await impatient
    third = begin(cache, later)
    asyncio.get_running_loop().call_soon(later.release)
    assert await second is ELSEWHERE
    assert (await third).coalesced
    assert later.asked == 1
    old.release()
    await flight


@pytest.mark.parametrize("ends", ["before", "after"])
async def test_user_that_a_lookup_from_before_a_purge_does_not_find_is_not_served_later(
    cache: AnswerCache, ends: str
) -> None:
    """Though a later lookup, which ends before or after it, has still found the user."""
    old, later = Source(ABSENT), Source(FOUND)
    first = await held(cache, old)
    cache.apply(Purge())
    second = await held(cache, later)
    for each in (later, old) if ends == "before" else (old, later):
        each.release()
        await asyncio.wait([second if each is later else first])
    assert [first.result(), second.result()] == [ABSENT, FOUND]
    assert cache.get(ALICE) is None


async def test_all_lookups_are_waited_for_but_one_that_is_cancelled_before_it_begins(
    cache: AnswerCache,
) -> None:
    caller = begin(cache, Source(FOUND))
    (flight,) = running(flights(cache))
    flight.cancel()
    joining = asyncio.create_task(flights(cache).join())
    await asyncio.sleep(0)
    (source := Source(FOUND)).hold()
    later = begin(cache, source, BOB)
    asyncio.get_running_loop().call_later(0.01, source.release)
    await asyncio.wait_for(joining, 5)
    assert later.done()
    caller.cancel()

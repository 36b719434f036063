"""A cache that takes the answers of another one over, as after a reload."""

import pytest
from msgspec import structs

from support.fakes.caches import (
    ABSENT,
    ALICE,
    BOB,
    ELSEWHERE,
    FOUND,
    FOUND_BOB,
    LIMITS,
    begin,
    failure,
    held,
    remember,
)
from support.fakes.clock_and_backends import FakeBackend, Source, Ticker, steady_cache
from support.fakes.directories import ALICE as USER
from support.fakes.directories import DOWN, QUERY, directory
from support.fakes.directories import begin as begin_in
from support.fakes.directories import failure as failure_in
from support.http.http_server import until
from tornado_idv.errors import Unavailable
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.model import ByCard


@pytest.fixture
def new(ticker: Ticker) -> AnswerCache:
    return steady_cache(LIMITS, ticker)


async def test_found_answers_of_kept_backends_alone_are_taken(
    cache: AnswerCache, new: AnswerCache
) -> None:
    await remember(cache, ALICE, ELSEWHERE)
    await remember(cache, BOB, FOUND_BOB)
    await remember(cache, ByCard("77"), ABSENT)
    await failure(cache, Source(Unavailable("down")), ByCard("78"))
    source = Source(FOUND)
    caller = await held(cache, source)
    new.take_found_answers(cache, ["members"])
    source.release()
    assert await caller is FOUND
    assert new.get(BOB) is FOUND_BOB
    assert [new.describe(each) for each in (ALICE, ByCard("77"), ByCard("78"))] == ["absent"] * 3
    assert new.get_stale(ALICE) is None
    assert new.sizes["found"] == 1


async def test_running_lookup_may_end_with_the_stale_answer_that_was_there(
    cache: AnswerCache, new: AnswerCache, ticker: Ticker
) -> None:
    """Also of a backend that is not kept, but not with one that was purged."""
    for query, answer in ((ALICE, ELSEWHERE), (BOB, FOUND_BOB), (ByCard("2"), FOUND_BOB)):
        await remember(cache, query, answer)
    ticker.now += 301
    cache.apply(Purge(("crm",)))
    await remember(cache, ByCard("1"), ELSEWHERE)
    source = Source(Unavailable("down"))
    callers = [await held(cache, source), begin(cache, source, BOB)]
    new.take_found_answers(cache, [])
    assert cache.get_stale(ALICE) is None
    assert cache.get_stale(BOB) == structs.replace(FOUND_BOB, stale=True)
    assert cache.get_stale(ByCard("2")) is None
    source.release()
    with pytest.raises(Unavailable, match="down"):
        await callers[0]
    assert (await callers[1]).stale
    cache.apply(Purge(("members",)))
    assert cache.get_stale(BOB) is None


async def test_lookup_from_before_a_purge_may_end_with_the_stale_answer_in_a_reload(
    ticker: Ticker,
) -> None:
    """The purge concerns another user."""
    backend = FakeBackend(USER)
    previous = directory(backend, ticker=ticker)
    await previous.find(QUERY)
    ticker.now += 301
    backend.source.answer = DOWN
    backend.source.hold()
    caller = await begin_in(previous, backend.source)
    previous.purge(Purge(queries=(ByCard("1"),)))
    directory(backend, ticker=ticker, previous=previous).replace(previous, ["crm"])
    backend.source.release()
    assert (await caller).stale


async def test_directory_without_kept_backends_takes_no_answer(ticker: Ticker) -> None:
    """Its cache may have other limits."""
    backend = FakeBackend(USER)
    previous = directory(backend, ticker=ticker)
    await (await begin_in(previous, backend.source))  # it is no running lookup then
    after = directory(backend, ticker=ticker, previous=previous)
    after.replace(previous, [])
    assert [each.cache.sizes["found"] for each in (previous, after)] == [1, 0]
    kept = directory(backend, ticker=ticker, previous=after)
    await after.find(QUERY)
    kept.replace(after, ["crm"])
    assert kept.get_cached(QUERY) is not None


async def test_entries_that_were_taken_are_refreshed_by_the_new_directory(ticker: Ticker) -> None:
    backend = FakeBackend(USER)
    previous = directory(backend, ticker=ticker)
    after = directory(backend, ticker=ticker, previous=previous)
    await previous.find(QUERY)
    await previous.find(ByCard(USER.card_number))
    ticker.now += 250
    assert previous.get_cached(QUERY) is not None
    after.replace(previous, ["crm"])
    assert after.get_cached(ByCard(USER.card_number)) is not None
    await until(lambda: after.cache.counters.refreshes["ok"])
    assert backend.source.asked == 3
    assert previous.cache.counters.refreshes["ok"] == 0


async def test_changes_are_followed_by_the_new_directory_once_it_replaces_the_old(
    ticker: Ticker,
) -> None:
    """Not before: its configuration may never be in force."""
    backend = FakeBackend(USER)
    previous = directory(backend, ticker=ticker)
    after = directory(backend, ticker=ticker, previous=previous)
    await previous.find(QUERY)
    backend.notify_changed()
    assert previous.get_cached(QUERY) is None
    after.replace(previous, ["crm"])
    await after.find(QUERY)
    backend.notify_changed()
    assert after.get_cached(QUERY) is None


@pytest.mark.parametrize("change", ["purged", "not found here", "not found there"])
async def test_user_who_is_gone_during_a_reload_is_stale_in_neither_directory(
    ticker: Ticker, change: str
) -> None:
    """The lookup that runs in the old directory ends after the change."""
    backend = FakeBackend(USER)
    previous = directory(backend, ticker=ticker)
    for query in (QUERY, ByCard(USER.card_number)):
        await previous.find(query)
    ticker.now += 301
    backend.source.answer = None if change == "not found there" else DOWN
    backend.source.hold()
    caller, release = await begin_in(previous, backend.source), backend.source.release
    after = directory(backend, ticker=ticker, previous=previous)
    after.replace(previous, ["crm"])
    if change == "purged":
        after.purge(Purge(queries=(QUERY,)))
    elif change == "not found here":
        held, backend.source.answer = backend.source.gate, None
        backend.source.hold().set()
        release = held.set
        assert not (await after.find(QUERY)).found
    release()
    if change == "not found there":
        assert not (await caller).found
    else:
        with pytest.raises(Unavailable, match="down"):
            await caller
    assert after.cache.get_stale(ByCard(USER.card_number)) is None
    backend.source.answer = DOWN
    ticker.now += 31
    await failure_in(after)


async def test_user_that_the_old_directory_does_not_find_is_not_cached_by_the_new_one(
    ticker: Ticker,
) -> None:
    """Though a lookup in the new one still finds the user, and ends later."""
    backend = FakeBackend()
    previous = directory(backend, ticker=ticker)
    gates = [backend.source.hold()]
    callers = [await begin_in(previous, backend.source)]
    after = directory(backend, ticker=ticker, previous=previous)
    after.replace(previous, ["crm"])
    backend.source.answer = USER
    gates.append(backend.source.hold())
    callers.append(await begin_in(after, backend.source))
    for gate, caller, found in zip(gates, callers, (False, True), strict=True):
        gate.set()
        assert (await caller).found == found
    assert after.get_cached(QUERY) is None


def test_purge_reaches_each_cache_of_a_replaced_directory_once(ticker: Ticker) -> None:
    """Or the time of a purge would double with each reload during a lookup that hangs."""
    caches = [steady_cache(LIMITS, ticker) for _ in range(5)]
    for each in caches:
        each.related = caches
    caches[3].apply(Purge())
    assert [each.purges for each in caches] == [1, 1, 1, 1, 0]

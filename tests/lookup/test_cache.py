"""Answers are cached for their time, and dropped when they should be."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable

import pytest
from msgspec import structs

from support.fakes.caches import (
    ABSENT,
    ALICE,
    ALICE_S_CARD,
    BOB,
    ELSEWHERE,
    FOUND,
    FOUND_BOB,
    LIMITS,
    begin,
    failure,
    fetch,
    held,
    refresh,
    remember,
)
from support.fakes.clock_and_backends import Source, Ticker, steady_cache
from tornado_idv.errors import Broken, LookupFailed, Unavailable
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.model import Answer, ByCard, Query

# For how long


LIFETIMES = {
    "found": (FOUND, 0.0, 300),
    "found, mean jitter": (FOUND, 0.5, 285),
    "found, largest jitter": (FOUND, 1.0, 270),
    "found, a shorter time of its own": (structs.replace(FOUND, ttl=7.0), 0.0, 7),
    "found, a longer time of its own": (structs.replace(FOUND, ttl=400.0), 0.0, 400),
    "not found": (ABSENT, 0.0, 30),
    "not found, largest jitter": (ABSENT, 1.0, 27),
    "not found, a time of its own": (structs.replace(ABSENT, ttl=5.0), 0.0, 5),
    "degraded": (structs.replace(FOUND, degraded=True), 0.0, 30),
    "degraded, a shorter time of its own": (structs.replace(FOUND, degraded=True, ttl=7.0), 0.0, 7),
}


@pytest.mark.parametrize(("answer", "chance", "seconds"), LIFETIMES.values(), ids=LIFETIMES)
async def test_an_answer_expires_exactly_at_its_ttl_which_no_hit_extends(
    ticker: Ticker, answer: Answer, chance: float, seconds: float
) -> None:
    cache = AnswerCache(LIMITS, ticker, lambda: chance)
    await remember(cache, ALICE, answer)
    for part in (0, 0.25, 0.5, 0.75, 0.9, 0.9999):
        ticker.now = 1000 + seconds * part
        assert cache.get(ALICE) is answer
    ticker.now = 1000 + seconds
    assert cache.get(ALICE) is None


@pytest.mark.parametrize("answer", [FOUND, ABSENT], ids=["found", "not found"])
async def test_an_answer_that_could_never_be_served_takes_no_place(answer: Answer) -> None:
    cache = steady_cache(LIMITS.model_copy(update={"stale_if_error": 0.0}))
    await remember(cache, ALICE, FOUND)
    await remember(cache, ALICE, structs.replace(answer, ttl=0.0))
    assert cache.sizes == {"found": 0, "negative": 0}
    assert cache.get_stale(ALICE) is None


@pytest.mark.parametrize(
    ("first", "then"), [(FOUND, ABSENT), (ABSENT, FOUND)], ids=["found first", "absent first"]
)
async def test_a_later_answer_replaces_an_earlier_one(
    cache: AnswerCache, ticker: Ticker, first: Answer, then: Answer
) -> None:
    await remember(cache, ALICE, structs.replace(first, ttl=1000.0))
    await remember(cache, ALICE, then)
    assert cache.get(ALICE) is then
    assert sum(cache.sizes.values()) == 1
    ticker.now += 500
    assert cache.get(ALICE) is None
    assert (cache.get_stale(ALICE) is not None) == then.found


# How many


@pytest.mark.parametrize(("answer", "room"), [(FOUND, 10), (ABSENT, 3)], ids=["found", "not found"])
async def test_often_used_user_is_not_evicted(
    cache: AnswerCache, answer: Answer, room: int
) -> None:
    for number in range(room):
        await remember(cache, ByCard(str(number)), answer)
    for number in range(room):
        cache.get(ByCard(str(number)))
    cache.get(ByCard("0"))
    await remember(cache, ByCard(str(room)), answer)
    assert cache.get(ByCard("0")) is answer
    assert cache.get(ByCard("1")) is None


# Failures


@pytest.mark.parametrize("kind", [Unavailable, Broken])
async def test_a_failure_is_remembered_for_two_seconds(
    cache: AnswerCache, ticker: Ticker, kind: type[LookupFailed]
) -> None:
    source = Source(kind("down", backend="crm"))
    await failure(cache, source)
    source.answer = FOUND
    for now in (1000.0, 1001.999):
        ticker.now = now
        error = await failure(cache, source)
        assert type(error) is kind
        assert str(error) == "crm: down"
    assert source.asked == 1
    ticker.now = 1002.0
    assert await fetch(cache, ALICE, source.ask) is FOUND


class Record:
    """Stands for what a backend holds while it answers."""


async def test_memoized_failure_holds_no_traceback(cache: AnswerCache) -> None:
    alive: list[weakref.ref[Record]] = []

    async def ask(query: Query) -> Answer:
        record = Record()
        alive.append(weakref.ref(record))
        raise Unavailable("down")

    with contextlib.suppress(Unavailable):
        await fetch(cache, ALICE, ask)
    await remember(cache, BOB, FOUND_BOB)  # the loop lets go of what it did last
    gc.collect()
    assert alive[0]() is None
    with pytest.raises(Unavailable, match="down"):
        await fetch(cache, ALICE, ask)


async def test_failures_are_as_few_as_absences(cache: AnswerCache) -> None:
    """Guesses during an outage grow no memory, and push no user out."""
    await remember(cache, ALICE, FOUND)
    queries = [ByCard(str(number)) for number in range(10)]
    for query in queries:
        await failure(cache, Source(Unavailable("down")), query)
    remembered = [cache.describe(query) for query in queries]
    assert remembered == ["absent"] * 7 + ["failure"] * 3
    assert (cache.get(ALICE), cache.counters.evictions) == (FOUND, 0)


@pytest.mark.parametrize(
    ("answer", "states"),
    [
        (FOUND, {0: "found", 299.9: "found", 300: "stale", 3899.9: "stale", 3900: "absent"}),
        (ABSENT, {0: "not_found", 29.9: "not_found", 30: "absent"}),
    ],
    ids=["found", "not found"],
)
async def test_description_is_of_what_would_be_served(
    cache: AnswerCache, ticker: Ticker, answer: Answer, states: dict[float, str]
) -> None:
    await remember(cache, ALICE, answer)
    for seconds, state in states.items():
        ticker.now = 1000.0 + seconds
        assert cache.describe(ALICE) == state
        assert (cache.get(ALICE) is not None) == (state in {"found", "not_found"})
        served = {"found": FOUND, "stale": structs.replace(FOUND, stale=True)}
        assert cache.get_stale(ALICE) == served.get(state)


async def test_stale_answer_elsewhere_replaces_none(cache: AnswerCache, ticker: Ticker) -> None:
    cache.keep_stale(ALICE, ELSEWHERE, 60)
    assert cache.get(ALICE) is None
    assert cache.get_stale(ALICE) == structs.replace(ELSEWHERE, stale=True)
    ticker.now += 60
    assert cache.get_stale(ALICE) is None
    await remember(cache, ALICE, FOUND)
    for query in (ALICE, BOB):
        cache.keep_stale(query, ELSEWHERE, 60)
    cache.apply(Purge(("crm",)))
    assert cache.get(ALICE) is FOUND
    assert cache.get_stale(BOB) is None


async def test_an_unexpected_error_is_raised_and_not_cached(cache: AnswerCache) -> None:
    source = Source(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await fetch(cache, ALICE, source.ask)
    source.answer = FOUND
    assert await fetch(cache, ALICE, source.ask) is FOUND


# Ahead of time


@pytest.fixture
def late(cache: AnswerCache) -> list[Query]:
    queries: list[Query] = []
    cache.on_late_hit = queries.append
    return queries


async def test_a_hit_late_in_a_life_asks_for_one_refresh(
    cache: AnswerCache, ticker: Ticker, late: list[Query]
) -> None:
    await remember(cache, ALICE, answer := structs.replace(FOUND, ttl=100.0))
    ticker.now = 1000 + 0.8 * 100 - 0.001
    assert cache.get(ALICE) is answer
    assert late == []
    ticker.now = 1000 + 0.8 * 100
    for _ in range(5):
        assert cache.get(ALICE) is answer
        ticker.now += 1
    assert late == [ALICE]


@pytest.mark.parametrize(
    ("answer", "when"),
    [(FOUND, 1300.0), (ABSENT, 1024.0), (ABSENT, 1029.999)],
    ids=["found and expired", "not found", "not found, at its end"],
)
async def test_no_other_hit_asks_for_a_refresh(
    cache: AnswerCache, ticker: Ticker, late: list[Query], answer: Answer, when: float
) -> None:
    await remember(cache, ALICE, answer)
    ticker.now = when
    cache.get(ALICE)
    assert late == []


async def test_refresh_of_a_running_lookup_starts_no_other(cache: AnswerCache) -> None:
    source = Source(FOUND)
    caller = await held(cache, source)
    await asyncio.wait_for(refresh(cache, ALICE, source.ask), timeout=5)
    source.release()
    assert await caller is FOUND
    assert source.asked == 1


async def test_caller_during_a_refresh_shares_its_answer(cache: AnswerCache) -> None:
    source = Source(FOUND)
    source.hold()
    renewal = asyncio.create_task(refresh(cache, ALICE, source.ask))
    await asyncio.wait_for(source.begun.wait(), timeout=5)
    caller = begin(cache, source)
    asyncio.get_running_loop().call_soon(source.release)
    assert (await caller).coalesced
    await renewal
    assert source.asked == 1


# Purges


PURGES: dict[str, Callable[[AnswerCache], None]] = {
    "its nickname": lambda cache: cache.apply(Purge(queries=(ALICE,))),
    "its card": lambda cache: cache.apply(Purge(queries=(ALICE_S_CARD,))),
    "its backend": lambda cache: cache.apply(Purge(("members",))),
    "all": lambda cache: cache.apply(Purge()),
}
each_purge = pytest.mark.parametrize("purge", PURGES.values(), ids=PURGES)


@each_purge
async def test_a_purge_drops_both_entries_of_a_user_every_absence_and_every_failure(
    cache: AnswerCache, ticker: Ticker, purge: Callable[[AnswerCache], None]
) -> None:
    await remember(cache, ALICE, FOUND)
    await remember(cache, ALICE_S_CARD, FOUND)
    await remember(cache, ByCard("3"), ABSENT)
    await failure(cache, Source(Unavailable("down")), BOB)
    purge(cache)
    for query in (ALICE, ALICE_S_CARD, ByCard("3"), BOB):
        assert cache.describe(query) == "absent"
    ticker.now += 300
    assert cache.get_stale(ALICE) is None
    await remember(cache, ALICE, FOUND)
    assert cache.get(ALICE) is FOUND


async def test_a_purge_of_a_user_keeps_the_others_in_their_order_of_use(cache: AnswerCache) -> None:
    for number in range(9):
        await remember(cache, ByCard(str(number)), FOUND_BOB)
    await remember(cache, ALICE, FOUND)
    cache.get(ByCard("0"))
    cache.apply(Purge(queries=(ALICE,)))
    for number in range(9, 11):
        await remember(cache, ByCard(str(number)), FOUND_BOB)
    kept = [number for number in range(11) if cache.get(ByCard(str(number)))]
    assert kept == [0, *range(2, 11)]


async def test_a_purge_of_one_backend_keeps_what_another_answered(cache: AnswerCache) -> None:
    await remember(cache, ALICE, ELSEWHERE)
    await remember(cache, BOB, FOUND_BOB)
    for purged in ("members", "of this name there is none"):
        cache.apply(Purge((purged,)))
        assert cache.get(ALICE) is ELSEWHERE
        assert cache.sizes == {"found": 1, "negative": 0}
    cache.apply(Purge(("crm",)))
    assert cache.get(ALICE) is None
    assert cache.sizes == {"found": 0, "negative": 0}


async def test_purged_answers_are_not_served_before_they_are_removed(
    cache: AnswerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal of many takes a while."""
    monkeypatch.setattr(cache._found, "sweep", lambda: None)  # noqa: SLF001 - the size of a table
    await remember(cache, ALICE, FOUND)
    await remember(cache, BOB, structs.replace(FOUND_BOB, backend="crm"))
    await remember(cache, ALICE_S_CARD, FOUND)
    cache.apply(Purge(("members",)))
    assert cache.sizes["found"] == 3
    assert (cache.get(ALICE), cache.describe(ALICE)) == (None, "absent")
    assert [text for part in cache.found_entries() for text, _ in part] == ["@bob"]
    cache.keep_stale(ALICE_S_CARD, ELSEWHERE, 60)
    assert cache.describe(ALICE_S_CARD) == "stale"
    cache.running.update(enumerate(["@alice", "@bob"]))
    steady_cache(LIMITS).take_found_answers(cache, [])
    assert [cache.describe(each) for each in (ALICE, BOB)] == ["absent", "found"]


@pytest.mark.parametrize("purge", [Purge(("members",)), Purge(queries=(BOB,))])
async def test_user_of_no_backend_is_kept_by_a_purge_of_another(
    cache: AnswerCache, purge: Purge
) -> None:
    answer = structs.replace(FOUND, backend=None)
    await remember(cache, ALICE, answer)
    await remember(cache, BOB, FOUND_BOB)
    cache.apply(purge)
    assert cache.get(ALICE) is answer
    assert cache.get(BOB) is None


@each_purge
async def test_result_computed_before_a_purge_is_not_stored(
    cache: AnswerCache, purge: Callable[[AnswerCache], None]
) -> None:
    ends = {ALICE: FOUND, ALICE_S_CARD: ABSENT, BOB: Unavailable("down")}
    sources = {query: Source(end) for query, end in ends.items()}
    for source in sources.values():
        source.hold()
    early = [begin(cache, source, query) for query, source in sources.items()]
    refreshed = Source(FOUND_BOB)
    refreshed.hold()
    early.append(asyncio.create_task(refresh(cache, ByCard("2"), refreshed.ask)))
    await asyncio.wait_for(refreshed.begun.wait(), timeout=5)
    purge(cache)
    for source in (*sources.values(), refreshed):
        source.release()
    await asyncio.gather(*early, return_exceptions=True)
    for query in (*sources, ByCard("2")):
        assert cache.get(query) is None
        assert cache.get_stale(query) is None
    assert await fetch(cache, BOB, Source(FOUND_BOB).ask) is FOUND_BOB

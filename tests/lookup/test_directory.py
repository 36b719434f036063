"""The directory: order, outcomes, cache, observers and deadlines."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from msgspec import structs

from support.fakes.clock_and_backends import (
    CardsOnly,
    FakeBackend,
    LoopClock,
    Source,
    Ticker,
    running,
)
from support.fakes.directories import (
    ALICE,
    BROKEN,
    DOWN,
    OTHER_ALICE,
    QUERY,
    OwnDispatch,
    begin,
    chain,
    counts,
    directory,
    failure,
)
from support.http.http_server import until
from tornado_idv.errors import Broken, LookupFailed, Unavailable
from tornado_idv.interfaces.hookspecs import hookimpl
from tornado_idv.lookup.directory import Directory
from tornado_idv.model import Answer, ByCard, ByNickname, Query, User


class Observer:
    def __init__(self) -> None:
        self.heard: list[tuple[Query, Answer | LookupFailed, bool]] = []

    @hookimpl
    def idv_lookup_finished(
        self,
        query: Query,
        outcome: Answer | LookupFailed,
        cached: bool,  # noqa: FBT001 - as the hook
    ) -> None:
        self.heard.append((query, outcome, cached))


class FailingObserver:
    @hookimpl
    def idv_lookup_finished(self, outcome: Answer) -> None:
        raise KeyError(outcome.user and outcome.user.nickname)


# The chain


FAIL, SKIP = "fail", "continue"
NOBODY, FOUND, FAILED = "not_found", "found", "unavailable"
CHAINS = {
    "first user": ((None, ALICE, OTHER_ALICE), FAIL, (ALICE, "b", False), [NOBODY, FOUND]),
    "nobody": ((None, None), FAIL, (None, None, False), [NOBODY, NOBODY]),
    "unavailable": ((None, DOWN, ALICE), FAIL, (Unavailable, "b", "down"), [NOBODY, FAILED]),
    "broken": ((None, BROKEN, ALICE), FAIL, (Broken, "b", "two users"), [NOBODY, "broken"]),
    "skipped, user": ((None, DOWN, ALICE), SKIP, (ALICE, "c", True), [NOBODY, FAILED, FOUND]),
    "skipped, broken": (
        (DOWN, BROKEN, ALICE),
        SKIP,
        (Broken, "b", "two users"),
        [FAILED, "broken"],
    ),
    "skipped alone": ((DOWN,), SKIP, (Unavailable, "a", "down"), [FAILED]),
    "skipped first": ((DOWN, None), SKIP, (Unavailable, "a", "down"), [FAILED, NOBODY]),
    "skipped last": ((None, DOWN), SKIP, (Unavailable, "b", "down"), [NOBODY, FAILED]),
    "skipped both": ((DOWN, DOWN), SKIP, (Unavailable, "b", "down"), [FAILED, FAILED]),
}


@pytest.mark.parametrize(("answers", "on_unavailable", "end", "calls"), CHAINS.values(), ids=CHAINS)
async def test_backends_are_called_in_order_up_to_the_one_that_decides(
    answers: tuple[object, ...], on_unavailable: str, end: tuple[object, ...], calls: list[str]
) -> None:
    """A user of a backend after a failed one may be another, and without a user it may be known.

    The coroutines of the rest are closed unstarted: a warning would fail this test.
    """
    backends = chain(*answers, on_unavailable=on_unavailable)
    asked = directory(*backends)
    explanation = await asked.explain(QUERY)
    assert [each.result for each in explanation.calls] == calls
    assert [each.backend for each in explanation.calls] == [*"abc"[: len(calls)]]
    assert counts(backends) == [1] * len(calls) + [0] * (len(backends) - len(calls))
    is_failure = isinstance(end[0], type)
    assert explanation.result == ("undetermined" if is_failure else FOUND if end[0] else NOBODY)
    if is_failure:
        error = await failure(asked)
        assert (type(error), error.backend, error.reason) == end
    else:
        answer = await asked.find(QUERY)
        assert (answer.user, answer.backend, answer.degraded) == end


@pytest.mark.parametrize(
    ("answer", "result", "end"),
    [
        (Answer(ALICE, "own"), FOUND, FOUND),
        (None, NOBODY, NOBODY),
        (KeyError("alice"), "undetermined", "broken"),
    ],
    ids=["found", "not found", "broken"],
)
async def test_plugins_are_called_after_the_backends(answer: object, result: str, end: str) -> None:
    own = OwnDispatch(answer)
    asked = directory(backend := FakeBackend(None), plugins=[own])
    explanation = await asked.explain(QUERY)
    assert explanation.result == result
    assert [each.result for each in explanation.calls] == [NOBODY, end]
    backend.source.answer = ALICE
    assert len((await asked.explain(QUERY)).calls) == 1
    assert own.source.asked == 1


async def test_explained_lookup_is_not_cached_and_does_not_read_the_cache() -> None:
    asked = directory(backend := FakeBackend(None))
    assert (await asked.find(QUERY)).user is None
    backend.source.answer = ALICE
    assert (await asked.explain(QUERY)).result == FOUND
    assert (await asked.find(QUERY)).user is None


async def test_explained_lookup_of_a_backend_that_hangs_ends_with_the_timeout() -> None:
    clock, ticker, backend = LoopClock(), Ticker(), FakeBackend(ALICE, timeout=60)
    backend.source.hold()
    explaining = asyncio.create_task(directory(backend, timeout=2, ticker=ticker).explain(QUERY))
    await asyncio.wait_for(backend.source.begun.wait(), timeout=5)
    clock.forward(2.1)
    ticker.now += 2
    explanation = await explaining
    assert explanation.result == "undetermined"
    assert [(each.backend, each.seconds) for each in explanation.calls] == [("crm", 2)]


@pytest.mark.parametrize("backends", [[], [CardsOnly(ALICE)]], ids=["none", "cards only"])
async def test_a_query_that_no_backend_serves_is_unavailable(backends: list[FakeBackend]) -> None:
    asked = directory(*backends)
    error = await failure(asked)
    assert isinstance(error, Unavailable)
    assert str(error) == "no backend serves ByNickname queries"
    explanation = await asked.explain(QUERY)
    assert (explanation.result, explanation.calls) == ("undetermined", [])
    assert counts(backends) == [0] * len(backends)


async def test_a_backend_is_skipped_for_what_it_does_not_serve() -> None:
    cards = CardsOnly(OTHER_ALICE, "cards")
    asked = directory(cards, FakeBackend(ALICE, "all"))
    assert (await asked.find(QUERY)).backend == "all"
    assert (await asked.find(ByCard("4001"))).backend == "cards"
    assert cards.source.asked == 1


async def test_a_kind_of_query_served_by_others_is_not_found_without_this_one() -> None:
    assert not (await directory(CardsOnly(DOWN, "cards"), FakeBackend(None)).find(QUERY)).found


def test_batches_get_half_of_the_smallest_concurrency_limit() -> None:
    asked = directory(FakeBackend(max_concurrent=4), FakeBackend(name="b", max_concurrent=64))
    assert [asked.batch_slots.try_acquire() for _ in range(3)] == [True, True, False]


# The cache in front


async def test_failure_that_is_not_memoized_is_that_of_one_lookup() -> None:
    backend = FakeBackend(Unavailable("behind", memoized=False))
    asked = directory(backend)
    assert str(await failure(asked)) == "crm: behind"
    backend.source.answer = ALICE
    assert (await asked.find(QUERY)).found


@pytest.mark.parametrize("error", [DOWN, BROKEN], ids=repr)
async def test_expired_user_is_served_stale_while_no_backend_is_available(
    error: LookupFailed,
) -> None:
    ticker, backend = Ticker(), FakeBackend(ALICE)
    asked = directory(backend, ticker=ticker)
    fresh = await asked.find(QUERY)
    backend.source.answer = error
    for now in (1300.0, 1301.0, 4899.0):
        ticker.now = now
        assert await asked.find(QUERY) == structs.replace(fresh, stale=True)
    assert backend.source.asked == 3
    ticker.now = 4900.0
    assert type(await failure(asked)) is type(error)


# Changes of data


async def test_a_backend_s_change_drops_its_users_later_ones_and_every_absence() -> None:
    """The first that knows a user wins, so it must be asked again."""
    first, second = chain(None, None)
    asked = directory(first, second)
    assert not (await asked.find(QUERY)).found
    second.source.answer = ALICE
    second.notify_changed()
    assert (await asked.find(QUERY)).backend == "b"
    first.source.answer = ALICE
    first.notify_changed()
    assert (await asked.find(QUERY)).backend == "a"
    first.source.answer = OTHER_ALICE
    second.notify_changed()
    assert (await asked.find(QUERY)).user is ALICE
    first.notify_changed()
    assert (await asked.find(QUERY)).user is OTHER_ALICE


async def test_a_change_of_one_user_keeps_the_answers_of_the_others() -> None:
    backend = FakeBackend(ALICE)
    backend.notify_changed()  # before anyone listens
    asked = directory(backend)
    assert (await asked.find(QUERY)).user is ALICE
    backend.source.answer = OTHER_ALICE
    backend.notify_changed(ByNickname("bob"))
    assert (await asked.find(QUERY)).user is ALICE
    backend.notify_changed(ByNickname("bob"), ByCard(ALICE.card_number))
    assert (await asked.find(QUERY)).user is OTHER_ALICE


# Many at once, and the deadline


async def test_lookup_has_one_deadline_for_all_and_later_callers_start_a_new_one() -> None:
    clock, own = LoopClock(), OwnDispatch(Answer(ALICE, "own"))
    own.source.stubborn = True
    own.source.hold()
    asked = directory(plugins=[own], timeout=2)
    leader = await begin(asked, own.source)
    clock.forward(1.5)
    follower = asyncio.create_task(asked.find(QUERY))
    asyncio.get_running_loop().call_soon(clock.forward, 0.6)
    for caller in (leader, follower):
        with pytest.raises(Unavailable) as caught:
            await caller
        assert str(caught.value) == "no answer within 2 s"
    gate, own.source.answer = own.source.gate, Answer(OTHER_ALICE, "own")
    own.source.hold().set()
    assert (await asked.find(QUERY)).user is OTHER_ALICE
    gate.set()
    await asked.join()
    assert (await asked.find(QUERY)).user is OTHER_ALICE
    assert own.source.asked == 2


async def test_a_stale_user_is_served_at_the_deadline_too() -> None:
    clock, ticker, own = LoopClock(), Ticker(), OwnDispatch(Answer(ALICE, "own"))
    asked = directory(plugins=[own], ticker=ticker, timeout=2)
    await asked.find(QUERY)
    own.source.hold()
    ticker.now += 300
    caller = await begin(asked, own.source)
    clock.forward(2.1)
    answer = await caller
    assert (answer.user, answer.stale) == (ALICE, True)


async def test_start_looks_up_past_the_cache() -> None:
    asked = directory(backend := FakeBackend(ALICE))
    for _ in range(2):
        assert (await asked.start(QUERY)).user is ALICE
    assert backend.source.asked == 2


async def test_callers_who_share_a_failure_get_one_each() -> None:
    """The traceback of one would grow with every caller."""
    asked = directory(FakeBackend(DOWN))
    ends = await asyncio.gather(*(asked.find(QUERY) for _ in range(3)), return_exceptions=True)
    ends += [await failure(asked), await failure(asked)]
    assert [str(each) for each in ends] == ["crm: down"] * 5
    assert len(set(map(id, ends))) == 5


# Refreshes


async def landed(asked: Directory) -> None:
    await asyncio.wait(running(asked._single_flight), timeout=5)  # noqa: SLF001 - lookups that no caller waits for


async def refreshed(asked: Directory, backend: FakeBackend, ticker: Ticker, answer: object) -> None:
    """Alice is looked up, hit late in her TTL, and refreshed meanwhile.

    The hit does not wait for that.
    """
    await asked.find(QUERY)
    backend.source.answer = answer
    backend.source.hold()
    ticker.now += 250
    assert (await asked.find(QUERY)).user is ALICE
    await asyncio.wait_for(backend.source.begun.wait(), timeout=5)
    backend.source.release()
    await landed(asked)
    assert backend.source.asked == 2


async def test_what_is_hit_late_in_its_life_is_asked_for_ahead_of_its_end() -> None:
    ticker, backend = Ticker(), FakeBackend(ALICE)
    asked = directory(backend, ticker=ticker)
    await refreshed(asked, backend, ticker, OTHER_ALICE)
    ticker.now += 239
    answer = await asked.find(QUERY)
    assert (answer.user, answer.since) == (OTHER_ALICE, 1250.0)
    assert backend.source.asked == 2
    assert asked.cache.counters.refreshes == {"ok": 1, "failed": 0}


@pytest.mark.parametrize("error", [DOWN, BROKEN, KeyError("alice")], ids=repr)
async def test_a_refresh_that_fails_leaves_what_is_remembered_to_its_end(error: Exception) -> None:
    ticker, backend = Ticker(), FakeBackend(ALICE)
    asked = directory(backend, ticker=ticker)
    await refreshed(asked, backend, ticker, error)
    assert asked.cache.counters.refreshes == {"ok": 0, "failed": 1}
    ticker.now += 49
    answer = await asked.find(QUERY)
    assert (answer.user, answer.stale, backend.source.asked) == (ALICE, False, 2)
    ticker.now += 1
    assert (await asked.find(QUERY)).stale


async def late_hits(count: int, **options: float) -> tuple[Directory, Source, list[ByCard], Ticker]:
    """A directory, its source, and so many queries with answers that are late in their TTL."""
    ticker, own = Ticker(), OwnDispatch(Answer(ALICE, "own"))
    asked = directory(plugins=[own], ticker=ticker, **options)
    queries = [ByCard(str(number)) for number in range(count)]
    for query in queries:
        await asked.find(query)
    ticker.now += 250
    own.source.most_under_way = 0
    return asked, own.source, queries, ticker


async def test_four_refreshes_run_at_once_and_the_others_wait() -> None:
    asked, source, queries, _ = await late_hits(12)
    source.hold()
    for query in queries:
        asked.get_cached(query)
    for _ in range(3):
        await asyncio.wait_for(source.begun.wait(), timeout=5)
        source.release()
        source.hold()
        await landed(asked)
    assert (source.most_under_way, source.asked) == (4, 24)


async def test_refreshes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tornado_idv.lookup.single_flight._MAX_WAITING_REFRESHES", 6)
    asked, source, queries, ticker = await late_hits(12)
    for number in (18, 24):  # those that have ended do not count
        for query in queries:
            asked.get_cached(query)
        await until(lambda number=number: source.asked == number)
        await asked.join()
        await asyncio.sleep(0)  # a refresh ends after its lookup
        assert source.asked == number
        ticker.now += 250


async def test_refreshes_that_never_end_keep_neither_others_nor_callers_waiting() -> None:
    clock = LoopClock()
    asked, source, queries, ticker = await late_hits(5, timeout=2)
    source.stubborn = True
    gate = source.hold()
    for query in queries:
        asked.get_cached(query)
    await asyncio.wait_for(source.begun.wait(), timeout=5)
    assert source.under_way == 4
    source.hold().set()
    clock.forward(2.1)
    await asyncio.wait_for(source.begun.wait(), timeout=5)
    ticker.now += 50
    assert not (await asked.find(ByCard("0"))).stale, "it is asked for again"
    gate.set()
    await asked.join()
    assert source.asked == 11


async def test_refreshes_that_wait_can_be_stopped() -> None:
    asked, source, queries, _ = await late_hits(6)
    before = asyncio.all_tasks()
    source.hold()
    for query in queries:
        asked.get_cached(query)
    await asyncio.wait_for(source.begun.wait(), timeout=5)
    flights = running(asked._single_flight)  # noqa: SLF001 - lookups that no caller waits for
    asked.stop_refreshing()
    await until(lambda: asyncio.all_tasks() == before | flights)
    source.release()
    await landed(asked)
    assert source.asked == 10


# Observers


@pytest.mark.parametrize("user", [ALICE, None], ids=["found", "not found"])
async def test_observers_hear_of_every_lookup_also_from_the_cache(user: User | None) -> None:
    observers = Observer(), Observer()
    asked = directory(FakeBackend(user), plugins=observers)
    first, second = await asyncio.gather(asked.find(QUERY), asked.find(QUERY))
    assert (first.coalesced, second.coalesced) == (False, True)
    hit = await asked.find(QUERY)
    for observer in observers:
        assert observer.heard == [(QUERY, first, False), (QUERY, hit, True)]


async def test_observers_hear_of_a_lookup_that_all_callers_have_left() -> None:
    observer, backend = Observer(), FakeBackend(ALICE)
    asked, gate = directory(backend, plugins=[observer]), backend.source.hold()
    caller = await begin(asked, backend.source)
    caller.cancel()
    gate.set()
    await asked.join()
    assert [cached for _, _, cached in observer.heard] == [False]


async def test_observers_hear_of_a_failure_once_also_behind_a_stale_answer() -> None:
    ticker, backend, observer = Ticker(), FakeBackend(ALICE), Observer()
    asked = directory(backend, plugins=[observer], ticker=ticker)
    await asked.find(QUERY)
    backend.source.answer = DOWN
    ticker.now += 300
    for _ in range(2):  # the second one gets the failure that is remembered
        assert (await asked.find(QUERY)).stale
    (_, answer, _), (query, error, cached) = observer.heard
    assert isinstance(answer, Answer)
    assert isinstance(error, LookupFailed)
    assert (query, error.reason, cached) == (QUERY, "down", False)


@pytest.mark.parametrize("order", [1, -1], ids=["before", "after"])
async def test_an_observer_that_fails_is_logged_and_keeps_nothing_from_the_others(
    caplog: pytest.LogCaptureFixture, order: int
) -> None:
    caplog.set_level(logging.DEBUG)
    observer = Observer()
    plugins = [FailingObserver(), observer][::order]
    assert (await directory(FakeBackend(ALICE), plugins=plugins).find(QUERY)).found
    assert len(observer.heard) == 1
    (message,) = caplog.messages
    first, *_, last = message.splitlines()
    assert (first, last) == ("an observer of lookups failed:", "KeyError")


async def test_observers_replace_earlier_ones_but_not_those_of_plugins() -> None:
    calls: list[str] = []

    def observer(name: str) -> Callable[..., None]:
        return lambda *_, **__: calls.append(name)

    asked = directory(FakeBackend(ALICE), plugins=[plugin := Observer()])
    asked.observe([observer("old")], [observer("old")])
    asked.observe([observer("lookup")], [observer("hit")])
    await asked.find(QUERY)
    await asked.find(QUERY)
    assert calls == ["lookup", "hit"]
    assert len(plugin.heard) == 2

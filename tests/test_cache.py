"""Answers are remembered for their time, asked for once, and forgotten when they should be."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tornado_idv.cache import AnswerCache, CacheLimits
from tornado_idv.errors import Unavailable
from tornado_idv.model import Answer, ByCard, ByNickname, Query, User

ALICE = ByNickname("alice")
FOUND = Answer(User("Free", "1", "alice"), "members")
ELSEWHERE = Answer(User("Pro", "1", "alice"), "crm")
ABSENT = Answer(None)
LIMITS = CacheLimits(ttl=300, negative_ttl=30, max_entries=10, max_negative_entries=3)


class Ticker:
    """A timer that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Source:
    """Gives the answer it is set to, and counts how often it was asked.

    While it is held it gives none: ``release`` lets all who wait go on.
    """

    def __init__(self, answer: Answer | Exception) -> None:
        self.answer = answer
        self.asked = 0
        self.begun = asyncio.Event()
        self._gate = asyncio.Event()
        self.release()

    def hold(self) -> None:
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    async def ask(self, query: Query) -> Answer:
        self.asked += 1
        answer = self.answer
        self.begun.set()
        await self._gate.wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def ticker() -> Ticker:
    return Ticker()


@pytest.fixture
def cache(ticker: Ticker) -> AnswerCache:
    return AnswerCache(LIMITS, ticker)


def ttl(answer: Answer) -> float:
    return LIMITS.ttl if answer.found else LIMITS.negative_ttl


async def remember(cache: AnswerCache, query: Query, answer: Answer) -> None:
    await cache.fetch(query, Source(answer).ask, ttl)


async def held(cache: AnswerCache, source: Source) -> asyncio.Task[Answer]:
    """A caller who waits for a source that is asked and gives no answer yet."""
    source.hold()
    caller = asyncio.create_task(cache.fetch(ALICE, source.ask, ttl))
    await asyncio.wait_for(source.begun.wait(), timeout=5)
    return caller


@pytest.mark.parametrize(
    ("answer", "seconds"), [(FOUND, 300), (ABSENT, 30)], ids=["found", "not found"]
)
async def test_an_answer_expires_exactly_at_its_ttl(
    cache: AnswerCache, ticker: Ticker, answer: Answer, seconds: float
) -> None:
    await remember(cache, ALICE, answer)
    assert cache.get(ALICE) is answer
    ticker.now += seconds - 0.001
    assert cache.get(ALICE) is answer
    ticker.now += 0.001
    assert cache.get(ALICE) is None


async def test_a_hit_does_not_extend_a_life(cache: AnswerCache, ticker: Ticker) -> None:
    await remember(cache, ALICE, FOUND)
    for _ in range(30):
        ticker.now += 10
        cache.get(ALICE)
    assert cache.get(ALICE) is None


async def test_an_answer_good_for_no_time_is_not_remembered(cache: AnswerCache) -> None:
    answer = await cache.fetch(ALICE, Source(FOUND).ask, lambda answer: 0.0)
    assert answer is FOUND
    assert cache.get(ALICE) is None


async def test_each_query_has_its_own_answer(cache: AnswerCache) -> None:
    """A card number and a nickname of the same text are two queries."""
    await remember(cache, ByNickname("1"), FOUND)
    assert cache.get(ByCard("1")) is None
    assert cache.get(ByNickname("1")) is FOUND


async def test_a_flood_of_guesses_pushes_no_user_out(cache: AnswerCache) -> None:
    await remember(cache, ALICE, FOUND)
    for number in range(100):
        await remember(cache, ByCard(str(number)), ABSENT)
    assert cache.get(ALICE) is FOUND
    remembered = [number for number in range(100) if cache.get(ByCard(str(number)))]
    assert remembered == [97, 98, 99]


async def test_the_user_not_asked_for_longest_makes_room(cache: AnswerCache) -> None:
    for number in range(10):
        await remember(cache, ByCard(str(number)), FOUND)
    cache.get(ByCard("0"))
    await remember(cache, ByCard("10"), FOUND)
    assert cache.get(ByCard("0")) is FOUND
    assert cache.get(ByCard("1")) is None


@pytest.mark.parametrize(
    ("first", "then"), [(FOUND, ABSENT), (ABSENT, FOUND)], ids=["found first", "absent first"]
)
async def test_a_later_answer_replaces_an_earlier_one(
    cache: AnswerCache, ticker: Ticker, first: Answer, then: Answer
) -> None:
    """Also when the earlier one could live longer: it does not come back afterwards."""
    await cache.fetch(ALICE, Source(first).ask, lambda answer: 1000.0)
    await remember(cache, ALICE, then)
    assert cache.get(ALICE) is then
    ticker.now += 500
    assert cache.get(ALICE) is None


async def test_500_callers_at_once_ask_once(cache: AnswerCache) -> None:
    source = Source(FOUND)
    first = await held(cache, source)
    others = [asyncio.create_task(cache.fetch(ALICE, source.ask, ttl)) for _ in range(499)]
    asyncio.get_running_loop().call_soon(source.release)
    answers = await asyncio.wait_for(asyncio.gather(first, *others), timeout=5)
    assert answers == [FOUND] * 500
    assert source.asked == 1


async def test_two_queries_are_asked_side_by_side(cache: AnswerCache) -> None:
    source = Source(FOUND)
    waiting = await held(cache, source)
    await remember(cache, ByCard("1"), ABSENT)
    assert not waiting.done()
    source.release()
    assert await waiting is FOUND


async def test_a_first_caller_who_leaves_harms_nobody(cache: AnswerCache) -> None:
    source = Source(FOUND)
    leader = await held(cache, source)
    follower = asyncio.create_task(cache.fetch(ALICE, source.ask, ttl))
    leader.cancel()
    assert (await asyncio.wait([leader], timeout=5))[0] == {leader}
    assert leader.cancelled()
    source.release()
    assert await asyncio.wait_for(follower, timeout=5) is FOUND
    assert source.asked == 1


async def test_an_answer_nobody_waits_for_any_more_is_remembered(cache: AnswerCache) -> None:
    source = Source(FOUND)
    leader = await held(cache, source)
    leader.cancel()
    await asyncio.wait([leader], timeout=5)
    source.release()
    assert await cache.fetch(ALICE, source.ask, ttl) is FOUND
    assert cache.get(ALICE) is FOUND
    assert source.asked == 1


async def test_a_failure_reaches_all_who_wait_and_is_not_remembered(cache: AnswerCache) -> None:
    source = Source(Unavailable("down"))
    first = await held(cache, source)
    others = [asyncio.create_task(cache.fetch(ALICE, source.ask, ttl)) for _ in range(9)]
    asyncio.get_running_loop().call_soon(source.release)
    ends = await asyncio.gather(first, *others, return_exceptions=True)
    assert ends == [source.answer] * 10
    assert source.asked == 1
    assert cache.get(ALICE) is None
    source.answer = FOUND
    assert await cache.fetch(ALICE, source.ask, ttl) is FOUND


async def test_a_failure_nobody_waits_for_makes_no_noise(
    cache: AnswerCache, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(Unavailable("down"))
    leader = await held(cache, source)
    (flight,) = cache._flights.values()
    leader.cancel()
    await asyncio.wait([leader], timeout=5)
    source.release()
    await asyncio.wait([flight], timeout=5)
    del flight
    assert not caplog.records


async def test_an_end_of_the_service_ends_a_flight_and_all_who_wait(cache: AnswerCache) -> None:
    source = Source(FOUND)
    caller = await held(cache, source)
    (flight,) = cache._flights.values()
    flight.cancel()
    await asyncio.wait([caller], timeout=5)
    assert caller.cancelled()
    source.release()
    assert await cache.fetch(ALICE, source.ask, ttl) is FOUND
    assert source.asked == 2


async def test_a_failure_leaves_what_is_remembered_alone(cache: AnswerCache) -> None:
    await remember(cache, ALICE, FOUND)
    with pytest.raises(Unavailable):
        await cache.fetch(ALICE, Source(Unavailable("down")).ask, ttl)
    assert cache.get(ALICE) is FOUND


PURGES: dict[str, Callable[[AnswerCache], None]] = {
    "its backend": lambda cache: cache.purge("members"),
    "all": lambda cache: cache.purge(),
}


@pytest.mark.parametrize("purge", PURGES.values(), ids=PURGES)
async def test_a_purge_drops_what_a_backend_answered_and_every_absence(
    cache: AnswerCache, purge: Callable[[AnswerCache], None]
) -> None:
    await remember(cache, ALICE, FOUND)
    await remember(cache, ByCard("2"), ABSENT)
    purge(cache)
    assert cache.get(ALICE) is None
    assert cache.get(ByCard("2")) is None
    await remember(cache, ALICE, FOUND)
    assert cache.get(ALICE) is FOUND


async def test_a_purge_of_one_backend_keeps_what_another_answered(cache: AnswerCache) -> None:
    await remember(cache, ALICE, ELSEWHERE)
    cache.purge("members")
    assert cache.get(ALICE) is ELSEWHERE
    cache.purge()
    assert cache.get(ALICE) is None


@pytest.mark.parametrize("purge", PURGES.values(), ids=PURGES)
async def test_an_answer_begun_before_a_purge_is_neither_remembered_nor_joined(
    cache: AnswerCache, purge: Callable[[AnswerCache], None]
) -> None:
    source = Source(FOUND)
    early = await held(cache, source)
    purge(cache)
    later = Source(ELSEWHERE)
    assert await cache.fetch(ALICE, later.ask, ttl) is ELSEWHERE
    source.release()
    assert await early is FOUND
    assert cache.get(ALICE) is ELSEWHERE


async def test_an_answer_begun_before_a_purge_does_not_end_a_later_flight(
    cache: AnswerCache,
) -> None:
    old = Source(FOUND)
    early = await held(cache, old)
    cache.purge()
    new = Source(ELSEWHERE)
    late = await held(cache, new)
    old.release()
    assert await early is FOUND
    assert cache.get(ALICE) is None
    joined = asyncio.create_task(cache.fetch(ALICE, new.ask, ttl))
    asyncio.get_running_loop().call_soon(new.release)
    assert [await late, await joined] == [ELSEWHERE] * 2
    assert new.asked == 1


class CacheMachine(RuleBasedStateMachine):
    """The cache beside a plain mapping from query to answer and end of its time."""

    queries = st.sampled_from([ByNickname("a"), ByNickname("b"), ByCard("1")])
    answers = st.sampled_from([FOUND, ELSEWHERE, ABSENT])

    def __init__(self) -> None:
        super().__init__()
        self.ticker = Ticker()
        self.cache = AnswerCache(LIMITS, self.ticker)
        self.model: dict[Query, tuple[Answer, float]] = {}
        self.runner = asyncio.Runner()

    def teardown(self) -> None:
        self.runner.close()

    @rule(query=queries, answer=answers)
    def fetch(self, query: Query, answer: Answer) -> None:
        self.runner.run(remember(self.cache, query, answer))
        self.model[query] = (answer, self.ticker.now + ttl(answer))

    @rule(seconds=st.sampled_from([1, 29, 30, 270, 300]))
    def tick(self, seconds: float) -> None:
        self.ticker.now += seconds

    @rule(backend=st.sampled_from(["members", "crm", None]))
    def purge(self, backend: str | None) -> None:
        self.cache.purge(backend)
        self.model = {
            query: (answer, end)
            for query, (answer, end) in self.model.items()
            if answer.found and backend not in (None, answer.backend)
        }

    @invariant()
    def remembers_what_the_model_does(self) -> None:
        for query in (ByNickname("a"), ByNickname("b"), ByCard("1")):
            answer, end = self.model.get(query, (None, 0.0))
            assert self.cache.get(query) is (answer if self.ticker.now < end else None)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)

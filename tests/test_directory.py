"""The one door to lookups: order, outcomes, cache, observers and the deadline."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tornado_idv.backend import Backend, BackendOptions
from tornado_idv.cache import AnswerCache, CacheLimits
from tornado_idv.directory import Directory
from tornado_idv.errors import Broken, CouldNotTell, Unavailable
from tornado_idv.guard import Asked
from tornado_idv.hookspecs import hookimpl
from tornado_idv.model import Answer, ByCard, ByNickname, Query, User
from tornado_idv.registry import plugin_manager

ALICE = User("Free", "4000", "alice")
OTHER_ALICE = User("Pro", "4001", "alice")
QUERY = ByNickname("alice")


class Ticker:
    """A timer that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeBackend(Backend[BackendOptions]):
    """Gives the answer it is set to, and counts how often it was asked."""

    def __init__(self, name: str, answer: User | Exception | None, **options: Any) -> None:
        super().__init__(BackendOptions(name=name, kind="fake", **options))
        self.answer = answer
        self.asked = 0

    async def find(self, query: Query) -> User | None:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class CardsOnly(FakeBackend):
    """Knows nothing of nicknames."""

    @property
    def serves(self) -> frozenset[type[Query]]:
        return frozenset({ByCard})


class Slow(FakeBackend):
    """Gives its answer when it is released."""

    def __init__(self, name: str, answer: User | Exception | None) -> None:
        super().__init__(name, answer, timeout=60)
        self.released = asyncio.Event()

    async def find(self, query: Query) -> User | None:
        user = await super().find(query)
        await self.released.wait()
        return user


class Observer:
    """Keeps what it is told of."""

    def __init__(self) -> None:
        self.heard: list[tuple[Query, Answer]] = []

    @hookimpl
    def idv_lookup_finished(self, query: Query, answer: Answer) -> None:
        self.heard.append((query, answer))


class FailingObserver:
    """Fails at each lookup, with the user in its error."""

    @hookimpl
    def idv_lookup_finished(self, query: Query, answer: Answer) -> None:
        raise KeyError(answer.user and answer.user.nickname)


def encode(user: User | None) -> bytes:
    return b"not found" if user is None else user.plan.encode()


def directory(
    *backends: FakeBackend,
    plugins: Sequence[object] = (),
    ticker: Ticker | None = None,
    **options: Any,
) -> Directory:
    """A directory of some backends, asked in this order."""
    manager = plugin_manager(entry_points=False, plugins=plugins)
    cache = AnswerCache(CacheLimits(ttl=300, negative_ttl=30), ticker or Ticker())
    return Directory(manager, backends, cache, encode, **options)


async def failure(asked: Directory) -> CouldNotTell:
    """Why there is no answer."""
    with pytest.raises(CouldNotTell) as caught:
        await asked.find(QUERY)
    return caught.value


async def test_a_user_is_found_with_the_backend_the_time_and_the_bytes() -> None:
    answer = await directory(FakeBackend("crm", ALICE)).find(QUERY)
    assert answer == Answer(ALICE, "crm", 1000.0, b"Free")


async def test_whom_no_backend_knows_is_not_found() -> None:
    answer = await directory(FakeBackend("a", None), FakeBackend("b", None)).find(QUERY)
    assert answer == Answer(None, None, 1000.0, b"not found")


async def test_backends_are_asked_in_the_order_of_the_file() -> None:
    told: list[Asked] = []
    backends = [FakeBackend(name, None) for name in ("c", "a", "b")]
    await directory(*backends, told=told.append).find(QUERY)
    assert [asked.backend for asked in told] == ["c", "a", "b"]


async def test_the_first_user_wins_and_the_rest_are_not_asked() -> None:
    """Their coroutines are closed unstarted: a warning would fail this test."""
    first, second, third = (
        FakeBackend("first", None),
        FakeBackend("second", ALICE),
        FakeBackend("third", OTHER_ALICE),
    )
    answer = await directory(first, second, third).find(QUERY)
    assert (answer.user, answer.backend) == (ALICE, "second")
    assert [first.asked, second.asked, third.asked] == [1, 1, 0]


@pytest.mark.parametrize("error", [Unavailable("down"), Broken("two users")], ids=repr)
async def test_a_backend_that_could_not_tell_ends_the_chain(error: CouldNotTell) -> None:
    """A user of a later backend may be another one, so none is named."""
    later = FakeBackend("later", ALICE)
    assert await failure(directory(FakeBackend("crm", error), later)) is error
    assert error.backend == "crm"
    assert later.asked == 0


async def test_a_backend_that_could_not_tell_is_not_reached_after_a_user() -> None:
    answer = await directory(
        FakeBackend("first", ALICE), FakeBackend("later", Unavailable("down"))
    ).find(QUERY)
    assert answer.user is ALICE


@pytest.mark.parametrize("backends", [[], [CardsOnly("cards", ALICE)]], ids=["none", "cards only"])
async def test_what_no_backend_serves_could_not_be_told(backends: list[FakeBackend]) -> None:
    error = await failure(directory(*backends))
    assert isinstance(error, Unavailable)
    assert str(error) == "no backend serves ByNickname"


async def test_a_backend_is_skipped_for_what_it_does_not_serve() -> None:
    cards = CardsOnly("cards", OTHER_ALICE)
    asked = directory(cards, FakeBackend("all", ALICE))
    assert (await asked.find(QUERY)).backend == "all"
    assert (await asked.find(ByCard("4001"))).backend == "cards"
    assert cards.asked == 1


async def test_a_remembered_answer_is_given_without_asking() -> None:
    backend = FakeBackend("crm", ALICE)
    asked = directory(backend)
    assert await asked.find(QUERY) is await asked.find(QUERY)
    assert backend.asked == 1


async def test_a_failure_is_asked_again() -> None:
    backend = FakeBackend("crm", Unavailable("down"))
    asked = directory(backend)
    await failure(asked)
    backend.answer = ALICE
    assert (await asked.find(QUERY)).found


async def lifetime(ticker: Ticker, asked: Directory, *backends: FakeBackend) -> float:
    """For how many seconds an answer is remembered, to the second."""
    await asked.find(QUERY)
    count = sum(backend.asked for backend in backends)
    began = ticker.now
    while sum(backend.asked for backend in backends) == count:
        ticker.now += 1
        await asked.find(QUERY)
    return ticker.now - began


@pytest.mark.parametrize(
    ("own", "seconds"), [(None, 300), (7, 7), (400, 400), (0, 1)], ids=["none", "less", "more", "0"]
)
async def test_a_user_is_remembered_for_the_backend_s_own_time(
    own: float | None, seconds: float
) -> None:
    ticker = Ticker()
    backends = FakeBackend("other", None, cache_ttl=3), FakeBackend("crm", ALICE, cache_ttl=own)
    asked = directory(*backends, ticker=ticker)
    assert await lifetime(ticker, asked, *backends) == seconds


@pytest.mark.parametrize(
    ("own", "seconds"),
    [
        ((None, None), 30),
        ((7, None), 7),
        ((7, 5), 5),
        ((60, 90), 60),
        ((60, None), 30),
    ],
    ids=str,
)
async def test_an_absence_is_remembered_for_the_shortest_time_of_all(
    own: tuple[float | None, float | None], seconds: float
) -> None:
    """A backend without a time of its own has that of the cache section."""
    ticker = Ticker()
    backends = [
        FakeBackend(str(number), None, negative_ttl=each) for number, each in enumerate(own)
    ]
    asked = directory(*backends, ticker=ticker)
    assert await lifetime(ticker, asked, *backends) == seconds


async def test_a_backend_s_change_drops_its_users_and_every_absence() -> None:
    first, second = FakeBackend("first", None), FakeBackend("second", None)
    asked = directory(first, second)
    assert not (await asked.find(QUERY)).found
    first.answer = ALICE
    first.changed()
    assert (await asked.find(QUERY)).user is ALICE
    first.answer = OTHER_ALICE
    second.changed()
    assert (await asked.find(QUERY)).user is ALICE
    first.changed()
    assert (await asked.find(QUERY)).user is OTHER_ALICE


async def test_a_change_in_an_earlier_backend_is_seen_in_what_a_later_one_answered() -> None:
    """The first that knows a user wins, so it must be asked again."""
    first, second = FakeBackend("first", None), FakeBackend("second", ALICE)
    asked = directory(first, second)
    assert (await asked.find(QUERY)).backend == "second"
    first.answer = OTHER_ALICE
    first.changed()
    assert (await asked.find(QUERY)).backend == "first"


def test_a_backend_s_change_before_anyone_listens_is_harmless() -> None:
    FakeBackend("crm", ALICE).changed()


async def test_observers_hear_of_every_answer_also_from_the_cache() -> None:
    observers = Observer(), Observer()
    asked = directory(FakeBackend("crm", ALICE), plugins=observers)
    answers = [await asked.find(QUERY), await asked.find(QUERY)]
    for observer in observers:
        assert observer.heard == [(QUERY, answer) for answer in answers]


async def test_observers_do_not_hear_of_a_failure() -> None:
    observer = Observer()
    await failure(directory(FakeBackend("crm", Unavailable("down")), plugins=[observer]))
    assert observer.heard == []


async def test_an_observer_that_fails_is_logged_and_harmless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = directory(FakeBackend("crm", ALICE), plugins=[FailingObserver()])
    assert (await asked.find(QUERY)).found
    assert "an observer of lookups failed" in caplog.text
    assert "KeyError" in caplog.text
    assert "alice" not in caplog.text


@pytest.mark.parametrize("order", [1, -1], ids=["before", "after"])
async def test_an_observer_that_fails_keeps_nothing_from_the_others(order: int) -> None:
    observer = Observer()
    plugins = [FailingObserver(), observer][::order]
    await directory(FakeBackend("crm", ALICE), plugins=plugins).find(QUERY)
    assert len(observer.heard) == 1


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (Unavailable("down"), logging.WARNING),
        (Broken("two users"), logging.ERROR),
        (KeyError("alice"), logging.ERROR),
    ],
    ids=repr,
)
async def test_a_failure_is_logged_with_its_cause_and_without_the_user(
    caplog: pytest.LogCaptureFixture, error: Exception, level: int
) -> None:
    caplog.set_level(logging.DEBUG)
    told = await failure(directory(FakeBackend("crm", error)))
    last = caplog.records[-1]
    assert last.levelno == level
    assert str(told) in last.getMessage()
    assert "alice" not in caplog.text


@asynccontextmanager
async def overdue(backend: Slow) -> AsyncIterator[Directory]:
    """A directory whose deadline is over while its backend still works."""
    asked = directory(backend, timeout=0.01)
    error = await failure(asked)
    assert isinstance(error, Unavailable)
    assert str(error) == "no answer within 0.01 s"
    yield asked
    backend.released.set()


async def test_a_lookup_has_a_deadline_of_its_own() -> None:
    async with overdue(Slow("crm", ALICE)):
        pass


async def test_who_asks_again_after_the_deadline_gets_the_answer_under_way() -> None:
    backend = Slow("crm", ALICE)
    async with overdue(backend) as asked:
        backend.released.set()
        assert (await asked.find(QUERY)).user is ALICE
        assert backend.asked == 1


class OwnDispatch:
    """A plugin that answers by itself, behind no configured backend."""

    @hookimpl
    def idv_identify(self, query: Query) -> Coroutine[Any, Any, Answer | None]:
        async def find() -> Answer | None:
            return Answer(ALICE, "own")

        return find()


async def test_a_plugin_may_answer_by_itself_after_the_backends() -> None:
    ticker = Ticker()
    backend = FakeBackend("crm", None, cache_ttl=3)
    asked = directory(backend, plugins=[OwnDispatch()], ticker=ticker)
    assert (await asked.find(QUERY)).backend == "own"
    assert await lifetime(ticker, asked, backend) == 300

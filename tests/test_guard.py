"""Whatever a backend does, its guard gives a right answer, or says that it could not tell."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tornado_idv.backend import Backend, BackendOptions
from tornado_idv.errors import Broken, CouldNotTell, Unavailable
from tornado_idv.guard import Asked, Guard
from tornado_idv.model import Answer, ByCard, ByNickname, Query, User

ALICE = User("Free", "4000", "alice")
BY_NICKNAME = ByNickname("alice")
BY_CARD = ByCard("4000")


class FakeBackend(Backend[BackendOptions]):
    """Answers as it is told to."""

    def __init__(self, find: Callable[[Query], Any], timeout: float = 5.0) -> None:
        super().__init__(BackendOptions(name="crm", kind="fake", timeout=timeout))
        self._find = find

    async def find(self, query: Query) -> User | None:
        user: User | None = self._find(query)
        return user


class CardsOnly(FakeBackend):
    """Knows nothing of nicknames."""

    @property
    def serves(self) -> frozenset[type[Query]]:
        return frozenset({ByCard})


class Endless(FakeBackend):
    """Never answers, and tells that it was stopped."""

    def __init__(self) -> None:
        super().__init__(lambda query: None, timeout=0.01)
        self.begun = asyncio.Event()
        self.stopped = False

    async def find(self, query: Query) -> User | None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped = True
        return None


def raising(error: BaseException) -> Callable[[Query], Any]:
    def find(query: Query) -> Any:
        raise error

    return find


def untold(asked: Asked) -> None:
    """Hears nothing."""


def ask(backend: FakeBackend, query: Query) -> Coroutine[Any, Any, Answer | None]:
    coroutine = Guard(backend, untold).idv_identify(query)
    assert coroutine is not None
    return coroutine


async def failure(backend: FakeBackend, query: Query = BY_NICKNAME) -> CouldNotTell:
    """Why there is no answer."""
    with pytest.raises(CouldNotTell) as caught:
        await asyncio.wait_for(ask(backend, query), timeout=5)
    return caught.value


@pytest.mark.parametrize("query", [BY_NICKNAME, BY_CARD], ids=["nickname", "card"])
async def test_a_user_is_an_answer_in_the_backend_s_name(query: Query) -> None:
    assert await ask(FakeBackend(lambda query: ALICE), query) == Answer(ALICE, "crm")


async def test_not_known_here_is_no_answer() -> None:
    assert await ask(FakeBackend(lambda query: None), BY_NICKNAME) is None


def test_what_a_backend_does_not_serve_it_is_not_asked() -> None:
    assert Guard(CardsOnly(lambda query: ALICE), untold).idv_identify(BY_NICKNAME) is None


async def test_what_a_backend_serves_it_is_asked() -> None:
    assert await ask(CardsOnly(lambda query: ALICE), BY_CARD) == Answer(ALICE, "crm")


@pytest.mark.parametrize("kind", [Unavailable, Broken])
async def test_a_backend_that_could_not_tell_is_named(kind: type[CouldNotTell]) -> None:
    error = await failure(FakeBackend(raising(kind("down for the night"))))
    assert type(error) is kind
    assert (error.backend, error.reason) == ("crm", "down for the night")
    assert str(error) == "crm: down for the night"


async def test_a_backend_that_never_answers_is_unavailable_and_stopped() -> None:
    backend = Endless()
    error = await failure(backend)
    assert isinstance(error, Unavailable)
    assert str(error) == "crm: no answer within 0.01 s"
    assert backend.stopped


async def test_a_time_out_of_the_backend_s_own_is_unavailable() -> None:
    assert isinstance(await failure(FakeBackend(raising(TimeoutError()))), Unavailable)


async def test_an_unforeseen_error_is_broken_and_its_text_is_in_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    error = await failure(FakeBackend(raising(KeyError("alice"))))
    assert isinstance(error, Broken)
    assert str(error) == "crm: failed with KeyError"
    assert "crm" in caplog.text
    assert "in find" in caplog.text
    assert "KeyError" in caplog.text
    assert "alice" not in caplog.text
    assert error.__suppress_context__


async def test_a_backend_whose_own_work_was_cancelled_is_broken() -> None:
    """The caller did not leave, and must hear an answer."""
    error = await failure(FakeBackend(raising(asyncio.CancelledError("alice"))))
    assert isinstance(error, Broken)


async def test_a_caller_who_leaves_stops_the_backend() -> None:
    told: list[Asked] = []
    backend = Endless()
    backend.options = BackendOptions(name="crm", kind="fake", timeout=60)
    coroutine = Guard(backend, told.append).idv_identify(BY_NICKNAME)
    assert coroutine is not None
    task = asyncio.ensure_future(coroutine)
    await asyncio.wait_for(backend.begun.wait(), timeout=5)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    assert backend.stopped
    assert [each.said for each in told] == ["gave up: the caller left"]


@pytest.mark.parametrize(
    "answer",
    [True, "alice", {"nickname": "alice"}, (ALICE,), User, Answer(ALICE)],
    ids=lambda value: type(value).__name__,
)
async def test_what_is_no_user_is_broken(answer: object) -> None:
    error = await failure(FakeBackend(lambda query: answer))
    assert isinstance(error, Broken)
    assert error.reason == "answered something that is no user"


@pytest.mark.parametrize("answer", [False, 0, "", [], {}], ids=repr)
async def test_an_empty_answer_is_broken_and_never_not_known(answer: object) -> None:
    assert isinstance(await failure(FakeBackend(lambda query: answer)), Broken)


@pytest.mark.parametrize(
    "user",
    [
        User("", "4000", "alice"),
        User("Free", "", "alice"),
        User("Free", "4000", "alice", ""),
        User("Fr\ud800ee", "4000", "alice"),
        User("Free", "4000", "alice", "https://x.example/\udfff"),
        User("Free", 4000, "alice"),  # type: ignore[arg-type]
        User(None, "4000", "alice"),  # type: ignore[arg-type]
        User("Free", None, "alice"),  # type: ignore[arg-type]
        User("Free", "4000", "alice", 1),  # type: ignore[arg-type]
        User(b"Free", "4000", "alice"),  # type: ignore[arg-type]
    ],
    ids=[
        "no plan",
        "no card",
        "empty URL",
        "surrogate in the plan",
        "surrogate in the URL",
        "card a number",
        "plan None",
        "card None",
        "URL a number",
        "plan bytes",
    ],
)
async def test_a_user_who_is_not_whole_is_broken(user: User) -> None:
    error = await failure(FakeBackend(lambda query: user))
    assert isinstance(error, Broken)
    assert error.reason == "answered a user with a field missing or not text"


@pytest.mark.parametrize(
    ("query", "user"),
    [
        (BY_NICKNAME, User("Free", "4000", "bob")),
        (BY_NICKNAME, User("Free", "4000", "Alice")),
        (BY_NICKNAME, User("Free", "4000", "@alice")),
        (BY_CARD, User("Free", "4001", "alice")),
        (BY_CARD, User("Free", "04000", "alice")),
    ],
    ids=["another", "another case", "with the sign", "another card", "a zero in front"],
)
async def test_another_user_than_asked_for_is_broken(query: Query, user: User) -> None:
    error = await failure(FakeBackend(lambda query: user), query)
    assert isinstance(error, Broken)
    assert error.reason == "answered another user than asked for"


@pytest.mark.parametrize(
    ("find", "said"),
    [
        (lambda query: ALICE, "found"),
        (lambda query: None, "not known here"),
        (raising(Unavailable("down")), "down"),
        (raising(KeyError("alice")), "failed with KeyError"),
        (lambda query: "alice", "answered something that is no user"),
    ],
    ids=["found", "not known", "unavailable", "unforeseen", "no user"],
)
async def test_every_end_of_a_lookup_is_told(find: Callable[[Query], Any], said: str) -> None:
    told: list[Asked] = []
    coroutine = Guard(FakeBackend(find), told.append).idv_identify(BY_NICKNAME)
    assert coroutine is not None
    await asyncio.gather(coroutine, return_exceptions=True)
    (asked,) = told
    assert (asked.backend, asked.said) == ("crm", said)
    assert 0 <= asked.seconds < 5

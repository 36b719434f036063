"""A backend may say for how long its answer holds, and that it must not be kept."""

import math
from typing import Any

import pytest

from support.fakes.clock_and_backends import FakeBackend, Ticker
from support.fakes.directories import (
    ALICE,
    DOWN,
    QUERY,
    chain,
    counts,
    directory,
    failure,
    lifetime,
)
from tornado_idv.errors import Broken
from tornado_idv.model import BackendResult, User

HINTS = {
    "a user, for less": (BackendResult(ALICE, ttl=7), {}, 7),
    "a user, for more": (BackendResult(ALICE, ttl=400), {}, 300),
    "a user, for more than its own": (BackendResult(ALICE, ttl=400), {"cache_ttl": 9}, 9),
    "nobody, for less": (BackendResult(None, ttl=7), {}, 7),
    "nobody, for more": (BackendResult(None, ttl=400), {}, 30),
    "nobody, for more than its own": (BackendResult(None, ttl=400), {"negative_ttl": 9}, 9),
    "nobody, for as long as usual": (BackendResult(None), {}, 30),
}


@pytest.mark.parametrize(("reported", "options", "seconds"), HINTS.values(), ids=HINTS)
async def test_a_backend_may_shorten_how_long_it_is_remembered_and_never_lengthen(
    reported: BackendResult, options: dict[str, float], seconds: float
) -> None:
    ticker, backend = Ticker(), FakeBackend(reported, **options)
    assert await lifetime(ticker, directory(backend, ticker=ticker), backend) == seconds


@pytest.mark.parametrize(
    "first", [BackendResult(None, ttl=7), BackendResult(None, ttl=20), None], ids=repr
)
async def test_not_found_is_remembered_for_the_shortest_of_what_the_backends_say(
    first: BackendResult | None,
) -> None:
    ticker, second = Ticker(), FakeBackend(BackendResult(None, ttl=10), name="second")
    asked = directory(FakeBackend(first), second, ticker=ticker)
    expected = 7 if first is not None and first.ttl == 7 else 10
    assert await lifetime(ticker, asked, second) == expected


@pytest.mark.parametrize("user", [ALICE, None], ids=["found", "not found"])
async def test_what_must_not_be_remembered_is_not_even_served_stale(user: User | None) -> None:
    ticker, backend = Ticker(), FakeBackend(ALICE)
    asked = directory(backend, ticker=ticker)
    await asked.find(QUERY)
    ticker.now += 300
    backend.source.answer = BackendResult(user, storable=False)
    for _ in range(2):
        assert (await asked.find(QUERY)).user == user
    assert backend.source.asked == 3
    backend.source.answer = DOWN
    await failure(asked)


@pytest.mark.parametrize("user", [ALICE, None], ids=["found", "not found"])
@pytest.mark.parametrize("ttl", [-1, math.nan, math.inf, "60", 1j], ids=str)
async def test_a_time_that_is_none_is_broken(user: User | None, ttl: Any) -> None:
    error = await failure(directory(FakeBackend(BackendResult(user, ttl=ttl))))
    assert isinstance(error, Broken)
    assert error.reason == "returned a time to live that is not a number of seconds"


async def test_what_is_not_fresh_may_be_served_stale() -> None:
    backend = FakeBackend(BackendResult(ALICE, ttl=0))
    asked = directory(backend)
    for _ in range(2):
        assert not (await asked.find(QUERY)).stale
    assert backend.source.asked == 2
    backend.source.answer = DOWN
    assert (await asked.find(QUERY)).stale


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_not_found_is_not_remembered_if_one_backend_forbids_it(place: int) -> None:
    answers: list[BackendResult | None] = [None, BackendResult(None, ttl=20), None]
    answers[place] = BackendResult(None, storable=False)
    backends = chain(*answers)
    asked = directory(*backends)
    for _ in range(2):
        assert not (await asked.find(QUERY)).found
    assert counts(backends) == [2, 2, 2]


async def test_user_of_a_backend_is_not_remembered_if_one_before_may_hold_another() -> None:
    backends = chain(BackendResult(None, storable=False), ALICE)
    asked = directory(*backends)
    for _ in range(2):
        assert (await asked.find(QUERY)).found
    assert counts(backends) == [2, 2]

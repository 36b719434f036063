"""A backend may say for how long its answer holds, and that it must not be kept."""

import math
from typing import Any

import pytest

from support.fakes.clock_and_backends import CardsOnly, FakeBackend, Ticker
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

LIFETIMES = {
    "user": ([FakeBackend(ALICE)], 300),
    "user, cache_ttl": ([FakeBackend(None, "a", cache_ttl=3), FakeBackend(ALICE, cache_ttl=7)], 7),
    "user, longer cache_ttl": ([FakeBackend(ALICE, cache_ttl=400)], 400),
    "user, cache_ttl of 0": ([FakeBackend(ALICE, cache_ttl=0)], 1),
    "user, result for less": ([FakeBackend(BackendResult(ALICE, ttl=7))], 7),
    "user, result for more": ([FakeBackend(BackendResult(ALICE, ttl=400))], 300),
    "user, for more than cache_ttl": ([FakeBackend(BackendResult(ALICE, ttl=400), cache_ttl=9)], 9),
    "user after a skipped backend": (chain(DOWN, ALICE, on_unavailable="continue"), 30),
    "nobody": ([FakeBackend(BackendResult(None))], 30),
    "nobody, negative_ttl": (
        [FakeBackend(None, "a", negative_ttl=7), FakeBackend(None, negative_ttl=5)],
        5,
    ),
    "nobody, negative_ttl of one": ([FakeBackend(None, "a", negative_ttl=7), FakeBackend(None)], 7),
    "nobody, longer negative_ttl": ([FakeBackend(None, negative_ttl=60)], 60),
    "nobody, longer negative_ttl of one": (
        [FakeBackend(None, "a", negative_ttl=60), FakeBackend(None)],
        30,
    ),
    "nobody, negative_ttl of another kind": (
        [CardsOnly(None, "cards", negative_ttl=3), FakeBackend(None)],
        30,
    ),
    "nobody, results for less": (chain(BackendResult(None, ttl=7), BackendResult(None, ttl=10)), 7),
    "nobody, later result for less": (chain(None, BackendResult(None, ttl=10)), 10),
    "nobody, result for more": ([FakeBackend(BackendResult(None, ttl=400))], 30),
    "nobody, for more than negative_ttl": (
        [FakeBackend(BackendResult(None, ttl=400), negative_ttl=9)],
        9,
    ),
}


@pytest.mark.parametrize(("backends", "seconds"), LIFETIMES.values(), ids=LIFETIMES)
async def test_an_answer_is_remembered_for_the_time_of_its_backends(
    backends: list[FakeBackend], seconds: float
) -> None:
    ticker = Ticker()
    assert await lifetime(ticker, directory(*backends, ticker=ticker), *backends) == seconds


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
@pytest.mark.parametrize("ttl", [-1, math.nan, math.inf, "60"], ids=str)
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


@pytest.mark.parametrize(
    "answers",
    [
        (BackendResult(None, storable=False), None),
        (BackendResult(None, ttl=20), BackendResult(None, storable=False), None),
        (BackendResult(None, storable=False), ALICE),
    ],
    ids=["first", "between", "before a user"],
)
async def test_answer_is_not_remembered_if_one_backend_before_it_forbids_it(
    answers: tuple[object, ...],
) -> None:
    """A later user, too: this backend may know another one."""
    backends = chain(*answers)
    asked = directory(*backends)
    for _ in range(2):
        await asked.find(QUERY)
    assert counts(backends) == [2] * len(answers)

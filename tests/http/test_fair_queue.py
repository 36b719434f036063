"""The fair queue: its order, and how many start in one event-loop iteration."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from support.fakes.clock_and_backends import Ticker
from tornado_idv.http.fair_queue import FairQueue

MS = 1 / 1024
"""About a millisecond, and a number whose sums are exact."""


class Harness:
    """A queue on the running loop, and what was resumed."""

    def __init__(self, *, budget: float = 0.0, rate: float = 1024.0) -> None:
        self.timer = Ticker()
        self.queue = FairQueue(asyncio.get_running_loop(), self.timer, budget=budget, rate=rate)
        self.resumed: list[str] = []

    def waiter(self, name: str, seconds: float = 0.0) -> Callable[[], None]:
        """One whose request takes so long."""
        return partial(self._resume, name, seconds)

    def enqueue(self, *names: str, seconds: float = 0.0, rejected: bool = False) -> None:
        for name in names:
            self.queue.enqueue(self.waiter(name, seconds), rejected=rejected)

    async def iterate(self, other_work: float = 0.0) -> list[str]:
        """Run one iteration, in which other work takes so long; return what it resumed."""
        self.resumed.clear()
        self.timer.now += other_work
        await asyncio.sleep(0)
        return self.resumed.copy()

    def _resume(self, name: str, seconds: float) -> None:
        self.timer.now += seconds
        self.resumed.append(name)


async def test_an_idle_service_resumes_one_per_iteration_in_order() -> None:
    harness = Harness()
    harness.enqueue("first", "second", seconds=MS)
    assert harness.resumed == []
    assert await harness.iterate() == ["first"]
    assert await harness.iterate() == ["second"]
    assert await harness.iterate() == []


async def test_a_busy_service_resumes_one_more_for_each_millisecond() -> None:
    """Of work since the queue was used, and a bounded number after the process was suspended."""
    harness = Harness()
    harness.timer.now += 1.0
    harness.enqueue(*map(str, range(100)))
    work = (0.0, 30 * MS, 10 * MS, 0.0, 3600.0)
    resumed = [len(await harness.iterate(each)) for each in work]
    assert resumed == [1, 31, 11, 1, pytest.approx(50, abs=2)]


async def test_a_budget_is_used_in_each_iteration() -> None:
    harness = Harness(budget=10 * MS, rate=0.0)
    harness.enqueue(*map(str, range(25)), seconds=MS)
    assert [len(await harness.iterate(other_work=MS)) for _ in range(4)] == [10, 10, 5, 0]


@pytest.mark.parametrize("rejected", [False, True], ids=["new", "rejected"])
async def test_a_waiter_is_resumed_at_most_once_per_iteration(*, rejected: bool) -> None:
    """However large the budget is, what else has come is looked at between two of its requests.

    Also if more new ones wait than rejected ones, each of which has a turn.
    """
    harness = Harness(budget=100 * MS)
    resumed: list[str] = []

    def endless() -> None:
        resumed.append("endless")
        harness.queue.enqueue(endless, rejected=rejected)

    harness.queue.enqueue(endless, rejected=rejected)
    harness.enqueue("1", "2", "3")
    assert await harness.iterate() == ["1", "2", "3"]
    assert resumed == ["endless"]


async def test_a_new_waiter_waits_for_one_rejected_waiter_at_most() -> None:
    harness = Harness()
    harness.enqueue(*map(str, range(100)), rejected=True)
    assert await harness.iterate() == ["0"]
    harness.enqueue("new")
    assert await harness.iterate() == ["new"]
    harness.enqueue("later")
    assert await harness.iterate() == ["1"]
    assert await harness.iterate() == ["later"]


async def test_new_waiters_do_not_starve_rejected_ones() -> None:
    """However many come, every second start is one of those that wait, in order."""
    harness = Harness()
    harness.enqueue("a", "b", "c", rejected=True)
    resumed: list[str] = []
    for number in range(6):
        harness.enqueue(str(2 * number), str(2 * number + 1))
        resumed += await harness.iterate()
    assert resumed == ["0", "a", "1", "b", "2", "c"]


async def test_both_classes_take_turns_within_one_iteration() -> None:
    harness = Harness()
    harness.enqueue(*map(str, range(100)))
    harness.enqueue("a", "b", "c", "d", rejected=True)
    resumed = await harness.iterate(other_work=9 * MS)
    assert resumed == ["0", "a", "1", "b", "2", "c", "3", "d", "4", "5"]


async def test_waiter_may_cancel_another() -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    harness = Harness(budget=100 * MS)
    other = harness.waiter("other")
    harness.queue.enqueue(lambda: harness.queue.cancel(other))
    harness.queue.enqueue(other)
    assert await harness.iterate() == []
    assert errors == []


async def test_a_waiter_is_resumed_once_and_keeps_its_position() -> None:
    """It is enqueued again whenever more bytes arrive."""
    harness = Harness()
    first = harness.waiter("first")
    harness.queue.enqueue(first)
    harness.enqueue("second")
    harness.queue.enqueue(first)
    assert [await harness.iterate() for _ in range(3)] == [["first"], ["second"], []]


@pytest.mark.parametrize("rejected", [False, True], ids=["new", "rejected"])
async def test_a_cancelled_waiter_is_not_resumed(*, rejected: bool) -> None:
    harness = Harness()
    first, second, third = map(harness.waiter, ("first", "second", "third"))
    for waiter in (first, second):
        harness.queue.enqueue(waiter, rejected=rejected)
    harness.queue.cancel(first)
    harness.queue.cancel(third)
    assert await harness.iterate() == ["second"]
    harness.queue.enqueue(third, rejected=rejected)
    harness.queue.cancel(third)
    assert await harness.iterate() == []


@pytest.mark.parametrize("other_work", [0.0, 0.1], ids=["idle", "busy"])
async def test_failing_waiter_does_not_stop_the_next(other_work: float) -> None:
    harness = Harness()
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reported.append(context["exception"])
    )
    error = ValueError()

    def fail() -> None:
        raise error

    harness.queue.enqueue(fail)
    harness.enqueue("next")
    assert await harness.iterate(other_work) == []
    assert await harness.iterate() == ["next"]
    assert reported == [error]

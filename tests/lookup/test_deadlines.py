import asyncio
from collections.abc import Callable

import pytest

from support.fakes.clock_and_backends import LoopClock
from support.fakes.loops import SteppedLoop
from tornado_idv.lookup.deadlines import DeadlineQueue, Timeout


async def test_what_ends_in_time_is_left_alone() -> None:
    with after(60) as limit:
        await asyncio.sleep(0)
    LoopClock().forward(61)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not limit.expired


async def test_what_takes_longer_is_a_time_out() -> None:
    with pytest.raises(TimeoutError), after(0) as limit:
        await asyncio.Event().wait()
    assert limit.expired
    assert not _task().cancelling()


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def limited() -> None:
        with after(60):
            await asyncio.Event().wait()

    task = asyncio.create_task(limited())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_at_the_same_moment_wins() -> None:
    async def limited() -> None:
        with after(0):
            try:
                await asyncio.Event().wait()
            finally:
                _task().cancel()  # as one would that comes before the task runs again

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(limited())


async def test_what_was_cancelled_before_can_still_be_limited() -> None:
    async def tidying_up() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                with after(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                return "in time"
        return "not at all"

    task = asyncio.create_task(tidying_up())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "in time"


async def test_task_that_ignores_cancellation_may_end_late() -> None:
    with after(0) as limit:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            answer = "late"
    assert (answer, limit.expired, _task().cancelling()) == ("late", True, 0)


async def test_an_error_raised_on_expiry_is_not_replaced_by_a_timeout() -> None:
    async def breaking() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise KeyError from None

    with pytest.raises(KeyError), after(0):
        await breaking()


async def test_expired_keys_are_reported_unless_they_are_discarded_before() -> None:
    reported: list[str] = []
    deadlines, clock = DeadlineQueue(reported.append), LoopClock()
    for key, seconds in (("late", 20), ("early", 10), ("done", 10)):
        deadlines.add(key, clock() + seconds)
    deadlines.discard("done")
    for expired in (["early"], ["early", "late"]):
        clock.forward(10)
        await _a_turn()
        assert reported == expired
    deadlines.add("another", clock() + 10)
    clock.forward(10)
    await _a_turn()
    assert reported == ["early", "late", "another"]


async def test_the_callback_may_discard_another_key_and_add_a_new_one() -> None:
    reported: list[str] = []

    def over(key: str) -> None:
        reported.append(key)
        deadlines.discard("second")
        if len(reported) == 1:
            deadlines.add("third", clock())

    deadlines, clock = DeadlineQueue(over), LoopClock()
    deadlines.add("first", clock() + 10)
    deadlines.add("second", clock() + 10)
    clock.forward(10)
    await _a_turn()
    clock.forward(10)
    await _a_turn()
    assert reported == ["first", "third"]


def test_deadlines_close_together_cause_few_scans() -> None:
    loop = SteppedLoop()
    reported: list[float] = []

    async def run() -> None:
        timers: list[asyncio.TimerHandle] = []
        call_at = loop.call_at

        def record(when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
            timers.append(call_at(when, callback))
            return timers[-1]

        loop.call_at = record  # type: ignore[method-assign, assignment]
        deadlines, start = DeadlineQueue(reported.append), loop.now
        for number in range(100, 0, -1):
            deadlines.add(number / 10_000, start + number / 10_000)
        assert sum(not each.cancelled() for each in timers) == 1
        timers.clear()
        for step in range(1, 200):
            loop.now = start + step / 10_000
            await asyncio.sleep(0)
        assert len(timers) <= 3

    loop.run_until_complete(run())
    loop.close()
    assert sorted(reported) == [number / 10_000 for number in range(1, 101)]


def after(seconds: float) -> Timeout:
    now = asyncio.get_running_loop().time()
    return Timeout(DeadlineQueue(Timeout.expire), now + seconds)


async def _a_turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def _task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task

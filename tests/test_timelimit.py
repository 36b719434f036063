import asyncio

import pytest
from fakes import LoopClock

from tornado_idv.timelimit import TimeLimit


async def test_what_ends_in_time_is_left_alone() -> None:
    with TimeLimit(60) as limit:
        await asyncio.sleep(0)
    LoopClock().forward(61)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not limit.is_over


async def test_what_takes_longer_is_a_time_out() -> None:
    with pytest.raises(TimeoutError), TimeLimit(0) as limit:
        await asyncio.Event().wait()
    assert limit.is_over
    assert not _task().cancelling()


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def limited() -> None:
        with TimeLimit(60):
            await asyncio.Event().wait()

    task = asyncio.create_task(limited())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_at_the_same_moment_wins() -> None:
    async def limited() -> None:
        with TimeLimit(0):
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
                with TimeLimit(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                return "in time"
        return "not at all"

    task = asyncio.create_task(tidying_up())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "in time"


async def test_one_who_will_not_be_cancelled_may_answer_late() -> None:
    with TimeLimit(0) as limit:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            answer = "late"
    assert (answer, limit.is_over, _task().cancelling()) == ("late", True, 0)


async def test_what_goes_wrong_when_the_time_is_over_is_told_as_it_is() -> None:
    async def breaking() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise KeyError from None

    with pytest.raises(KeyError), TimeLimit(0):
        await breaking()


async def test_the_outer_of_two_limits_is_the_one_that_ends() -> None:
    with pytest.raises(TimeoutError), TimeLimit(0) as outer, TimeLimit(60) as inner:
        await asyncio.Event().wait()
    assert outer.is_over
    assert not inner.is_over


async def test_only_a_task_can_be_limited() -> None:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def limit() -> None:
        try:
            with TimeLimit(1):
                told.set_result("limited")
        except RuntimeError as error:
            told.set_result(str(error))

    asyncio.get_running_loop().call_soon(limit)
    assert await told == "only a task can be limited"


def _task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task

"""The bulkhead: who gets a permit, in which order, and when one has waited long enough."""

import asyncio

import pytest

from support.fakes.clock_and_backends import LoopClock
from tornado_idv.lookup import bulkhead as module
from tornado_idv.lookup.bulkhead import Bulkhead

FAR = 64.0


class Harness:
    """A bulkhead without a free permit; ``served`` are the waiters that got one, in order."""

    def __init__(self, limit: int = 1) -> None:
        self.clock = LoopClock()
        self.clock.stop()
        self.bulkhead = Bulkhead(limit)
        self.served: list[str] = []
        while self.bulkhead.try_acquire():
            pass

    async def wait(
        self, *names: str, seconds: float = FAR, first: bool = False
    ) -> asyncio.Task[bool]:
        deadline = self.clock() + seconds
        for name in names:
            task = asyncio.create_task(self._acquire(name, deadline, first=first))
        await asyncio.sleep(0)
        return task

    async def release(self, times: int = 1) -> list[str]:
        """Give permits back one by one, and return all who were served by then."""
        for _ in range(times):
            self.bulkhead.release()
            await self.settle()
        return self.served

    async def settle(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async def _acquire(self, name: str, deadline: float, *, first: bool) -> bool:
        if granted := await self.bulkhead.acquire(deadline, first=first):
            self.served.append(name)
        return granted


@pytest.mark.parametrize("ends", ["cancelled", "too late"])
async def test_queue_is_full_until_its_waiters_have_left(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    harness = Harness()
    waiters = [await harness.wait(name, seconds=2) for name in "ab"]
    assert not harness.bulkhead.can_queue
    if ends == "cancelled":
        for waiter in waiters:
            waiter.cancel()
    else:
        await harness.clock.advance(2)
    await asyncio.wait(waiters)
    assert harness.bulkhead.can_queue


async def test_permit_goes_to_the_longest_waiter() -> None:
    harness = Harness(2)
    await harness.wait("first", "second")
    assert await harness.release() == ["first"]
    assert not harness.bulkhead.try_acquire()
    assert await harness.release() == ["first", "second"]
    await harness.release()
    assert [harness.bulkhead.try_acquire() for _ in range(2)] == [True, False]


async def test_newest_are_first_once_one_has_waited_for_half_of_its_time() -> None:
    """Else every waiter would be served with little time left."""
    harness = Harness()
    await harness.wait("a", "b", seconds=8)
    harness.clock.forward(3)
    await harness.wait("c", "d", seconds=8)
    assert await harness.release() == ["a"]
    harness.clock.forward(1)
    assert await harness.release(3) == ["a", "d", "c", "b"]


async def test_longest_waiters_are_first_again_when_none_is_late() -> None:
    harness = Harness()
    await harness.wait("late", seconds=8)
    harness.clock.forward(4)
    await harness.wait("a", "b", "c", seconds=8)
    await harness.clock.advance(5)
    await harness.settle()
    assert await harness.release() == ["c"]  # a and b are late
    harness.clock.forward(-3)
    assert await harness.release(2) == ["c", "a", "b"]


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
async def test_waiter_that_is_to_be_first_is_so(*, late: bool) -> None:
    harness = Harness()
    await harness.wait("a", "b", seconds=8)
    await harness.wait("canary", seconds=8, first=True)
    harness.clock.forward(5 if late else 1)
    await harness.wait("c", seconds=8)
    assert await harness.release() == ["canary"]


async def test_waiter_gets_no_permit_after_its_deadline() -> None:
    harness = Harness()
    other, waiter = await harness.wait("b", seconds=4), await harness.wait("a", seconds=2)
    asyncio.get_running_loop().call_at(harness.clock() + 2, harness.bulkhead.release)
    await harness.clock.advance(2)
    assert not await waiter
    assert await other  # the permit that became free at the deadline of the first
    await harness.release()
    assert harness.bulkhead.in_use == 0


@pytest.mark.parametrize("is_granted_first", [False, True])
async def test_permit_of_a_cancelled_waiter_goes_to_the_next(*, is_granted_first: bool) -> None:
    harness = Harness()
    first, second = await harness.wait("first"), await harness.wait("second")
    if is_granted_first:
        harness.bulkhead.release()
    first.cancel()
    if not is_granted_first:
        harness.bulkhead.release()  # before the first has noticed
    assert await second
    with pytest.raises(asyncio.CancelledError):
        await first
    await harness.release()
    assert harness.bulkhead.in_use == 0


async def test_cancelled_waiter_without_a_permit_passes_none_on() -> None:
    harness = Harness()
    waiter = await harness.wait("a", seconds=2)
    asyncio.get_running_loop().call_at(harness.clock() + 2, waiter.cancel)
    await harness.clock.advance(2)
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert harness.bulkhead.in_use == 1

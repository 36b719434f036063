import asyncio

import pytest

from tornado_idv.lookup.bulkhead import Bulkhead

FAR = 60.0


async def waiting(bulkhead: Bulkhead, seconds: float = FAR) -> asyncio.Task[None]:
    """One waiter in the queue."""
    until = asyncio.get_running_loop().time() + seconds
    task = asyncio.create_task(bulkhead.acquire(until))
    await asyncio.sleep(0)
    return task


async def test_as_many_enter_as_there_are_places() -> None:
    bulkhead = Bulkhead(2)
    assert [bulkhead.try_acquire() for _ in range(3)] == [True, True, False]
    bulkhead.release()
    assert [bulkhead.try_acquire() for _ in range(2)] == [True, False]


async def test_queue_is_as_long_as_the_limit() -> None:
    bulkhead = Bulkhead(2)
    assert bulkhead.can_queue
    waiters = [await waiting(bulkhead) for _ in range(2)]
    assert not bulkhead.can_queue
    for waiter in waiters:
        waiter.cancel()
    await asyncio.wait(waiters)
    assert bulkhead.can_queue


async def test_permit_goes_to_the_longest_waiter() -> None:
    bulkhead = Bulkhead(2)
    assert bulkhead.try_acquire()
    assert bulkhead.try_acquire()
    first, second = [await waiting(bulkhead) for _ in range(2)]
    bulkhead.release()
    assert not bulkhead.try_acquire()
    await first
    assert not second.done()
    bulkhead.release()
    await second
    bulkhead.release()
    assert [bulkhead.try_acquire() for _ in range(2)] == [True, False]


async def test_cancelled_waiter_is_skipped() -> None:
    bulkhead = Bulkhead(2)
    assert bulkhead.try_acquire()
    assert bulkhead.try_acquire()
    first, second = [await waiting(bulkhead) for _ in range(2)]
    first.cancel()
    bulkhead.release()  # before the first has noticed
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
    bulkhead.release()
    bulkhead.release()
    assert [bulkhead.try_acquire() for _ in range(3)] == [True, True, False]


async def test_cancelled_waiter_passes_its_permit_on() -> None:
    bulkhead = Bulkhead(2)
    assert bulkhead.try_acquire()
    assert bulkhead.try_acquire()
    first, second = [await waiting(bulkhead) for _ in range(2)]
    bulkhead.release()
    first.cancel()  # before the first has noticed
    with pytest.raises(asyncio.CancelledError):
        await first
    await second

"""A limit of concurrent calls. Each caller that waits for a permit has a deadline.

It is like `asyncio.Semaphore`, but with deadlines. A free permit is taken without a coroutine.

The oldest waiter gets the next permit. If the oldest waiter has used half of its time, the newest
waiter gets the permit ("adaptive LIFO"), because during an overload, strict order of arrival would
make every waiter late. Older waiters stay in the queue, in case the load decreases.
"""

import asyncio
from collections import deque
from math import inf

from tornado_idv.lookup.deadlines import DeadlineQueue

MAX_WAITING = 10_000
"""Maximum number of callers that wait for a permit, to limit the memory of the queue."""
_Permit = asyncio.Future[bool]


class Bulkhead:
    """Grants up to ``limit`` permits at a time. At most `MAX_WAITING` callers wait for a permit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._queue: deque[tuple[float, _Permit]] = deque()
        """The waiters, oldest first. Each has the loop time at which half of its wait is over."""
        self._deadlines = DeadlineQueue(_refuse)

    @property
    def in_use(self) -> int:
        return self._limit - self._free

    @property
    def can_queue(self) -> bool:
        """Return whether another caller may wait in `acquire`."""
        return len(self._queue) < MAX_WAITING

    def try_acquire(self) -> bool:
        """Try to take a permit without waiting. Return whether a permit was free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def acquire(self, deadline: float, *, first: bool = False) -> bool:
        """Wait for a permit after `try_acquire` has failed. Return false after ``deadline``.

        ``deadline`` is a time of the loop's clock. ``first`` puts the caller at the queue's head.
        """
        loop = asyncio.get_running_loop()
        permit: _Permit = loop.create_future()
        if first:
            self._queue.appendleft((inf, permit))  # a waiter with `inf` never counts as late
        else:
            self._queue.append(((loop.time() + deadline) / 2, permit))
        self._deadlines.add(permit, deadline)
        try:
            return await permit
        except asyncio.CancelledError:
            if not permit.cancelled() and permit.result():
                self.release()  # granted in the same iteration of the loop: pass it on
            raise
        finally:
            self._deadlines.discard(permit)
            # Remove finished waiters: `release` reads the time of the first, `can_queue` counts.
            while self._queue and self._queue[0][1].done():
                self._queue.popleft()

    def release(self) -> None:
        """Give a permit back. The next waiter gets the permit; without waiters, it is free."""
        queue = self._queue
        while queue:
            is_late = queue[0][0] <= asyncio.get_running_loop().time()
            _, permit = queue.pop() if is_late else queue.popleft()
            if not permit.done():
                permit.set_result(True)
                return
        self._free += 1


def _refuse(permit: _Permit) -> None:
    if not permit.done():
        permit.set_result(False)

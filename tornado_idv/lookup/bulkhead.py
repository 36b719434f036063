"""A concurrency limit; its wait queue is bounded by time.

Like `asyncio.Semaphore`, but with deadlines. When a permit is free, as usual, no coroutine is
called.

The queue is first come, first served. While the oldest waiter has used half of its time or more,
the newest come first ("adaptive LIFO"): in the old order all of them would get their permits late,
and most too late. The older ones keep waiting in case the load decreases.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf

from tornado_idv.lookup.deadlines import DeadlineQueue

MAX_WAITING = 10_000
"""Limits the memory. Usually fewer requests wait: most have an open connection."""
_Permit = asyncio.Future[bool]


class Bulkhead:
    """At most ``limit`` permits at once, and at most `MAX_WAITING` waiting for one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._queue: deque[tuple[float, _Permit]] = deque()
        """Waiters, the oldest first, each with the time at which half of its time is used."""
        self._deadlines = DeadlineQueue(_refuse)

    @property
    def in_use(self) -> int:
        """The number of permits in use."""
        return self._limit - self._free

    @property
    def can_queue(self) -> bool:
        """Return whether there is room for one more in `acquire`."""
        return len(self._queue) < MAX_WAITING

    def try_acquire(self) -> bool:
        """Take a free permit; return whether there was one."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def acquire(self, deadline: float, *, first: bool = False) -> bool:
        """Wait for a permit, ahead of all others if ``first``; for use when none is free.

        Return whether there was one by ``deadline``, of the running loop's clock.
        """
        loop = asyncio.get_running_loop()
        permit: _Permit = loop.create_future()
        if first:
            self._queue.appendleft((inf, permit))  # it never counts as late
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
            # `release` compares the time of the first one, and `can_queue` counts all.
            while self._queue and self._queue[0][1].done():
                self._queue.popleft()

    def release(self) -> None:
        """Give a permit back: to the next waiter, or to the pool."""
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

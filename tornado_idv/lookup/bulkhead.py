"""A concurrency limit with a bounded wait queue.

Like `asyncio.Semaphore`, but with a limit to the queue, and without a coroutine call in the
usual case, where nothing has to wait.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Bulkhead:
    """At most ``limit`` permits at once, and at most as many waiting for one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def in_use(self) -> int:
        """The number of permits that are taken."""
        return self._limit - self._free

    @property
    def can_queue(self) -> bool:
        """Return whether there is room for one more in `acquire`."""
        return len(self._queue) < self._limit

    def try_acquire(self) -> bool:
        """Take a permit, if one is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def acquire(self, deadline: float) -> None:
        """Wait for a permit, first come first served; for use when none is free.

        Raises `TimeoutError` at ``deadline``, of the running loop's clock.
        """
        permit = asyncio.get_running_loop().create_future()
        self._queue.append(permit)
        try:
            async with asyncio.timeout_at(deadline):
                await permit
        except BaseException:
            if permit in self._queue:
                self._queue.remove(permit)
            else:  # granted in the same iteration of the loop: pass it on
                self.release()
            raise

    def release(self) -> None:
        """Give a permit back, to the one that has waited longest."""
        for permit in self._queue:
            if not permit.done():  # a cancelled one removes itself
                self._queue.remove(permit)
                permit.set_result(None)
                return
        self._free += 1

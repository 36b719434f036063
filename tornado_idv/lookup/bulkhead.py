"""A bulkhead: so many at once, and as many again in a queue before it.

It does what `asyncio.Semaphore` would do, with an end to the queue; that nobody waits is the
rule, and costs next to nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Bulkhead:
    """Places in which to work; whoever took one leaves it when done.

    Who finds none free asks whether the queue has an end left, and then waits in it.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._most_waiting = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def has_queue_left(self) -> bool:
        """Whether one more may `wait`."""
        return len(self._waiting) < self._most_waiting

    def enter(self) -> bool:
        """Takes a place if there is one."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def wait(self, until: float) -> None:
        """Takes the place of somebody who leaves, first come first served; for when none is free.

        Raises `TimeoutError` when it is ``until``, of the running loop's clock.
        """
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout_at(until):
                await place
        except BaseException:
            if place in self._waiting:
                self._waiting.remove(place)
            else:
                self.leave()
            raise

    def leave(self) -> None:
        """Gives the place to whoever has waited longest."""
        for place in self._waiting:
            if not place.done():
                self._waiting.remove(place)
                place.set_result(None)
                return
        self._free += 1

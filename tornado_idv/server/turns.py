"""Whose request is next: one at a time between two looks at the sockets.

A request that the packet cache cannot answer takes as long as several that it can. When a
crowd asks such at once, whoever comes meanwhile is not to wait for all of them.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable


class Turns:
    """A queue for the event loop, which reads what has come before it goes on with it."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()  # the first has its turn

    def wait(self, turn: Callable[[], None]) -> None:
        """Has ``turn`` called soon, after those who wait already."""
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                self._loop.call_soon(self._next)

"""Whose request is next, among callers who have not shown a good key.

Such requests begin one at a time between two looks at the sockets, or when their time is up. So
when a crowd guesses keys in the same moment, whoever asks meanwhile waits for one of them and not
for all.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import OrderedDict
from collections.abc import Callable

Turn = Callable[[], None]


class Turns:
    """A queue for the event loop, which reads what has come before it goes on with it."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: OrderedDict[Turn, None] = OrderedDict()
        self._called = False

    def wait(self, turn: Turn) -> None:
        """Has ``turn`` called soon, after all who wait already; once, if it waits itself."""
        self._waiting.setdefault(turn)
        if not self._called:
            self._call()

    def leave(self, turn: Turn) -> None:
        """Gives a turn up that is not wanted any more."""
        self._waiting.pop(turn, None)

    def __contains__(self, turn: Turn) -> bool:
        """Whether it waits."""
        return turn in self._waiting

    def _call(self) -> None:
        self._called = True
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._called = False
        if not self._waiting:
            return
        turn, _ = self._waiting.popitem(last=False)
        if self._waiting:
            self._call()
        turn()

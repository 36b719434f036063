"""Whose request is next, among callers who have not shown a good key.

Such requests begin one at a time between two looks at the sockets, or when their time is up. So
when a crowd guesses keys in the same moment, whoever asks meanwhile waits for one of them and not
for all.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import OrderedDict
from typing import Protocol


class Waiting(Protocol):
    """Who waits for a turn."""

    def advance(self) -> None:
        """The turn has come."""


class Turns:
    """A queue for the event loop, which reads what has come before it goes on with it."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()
        self._called = False

    def wait(self, who: Waiting) -> None:
        """Gives a turn soon, after all who wait already; one, if this one waits itself."""
        self._waiting.setdefault(who)
        if not self._called:
            self._call()

    def leave(self, who: Waiting) -> None:
        """Waits no more."""
        self._waiting.pop(who, None)

    def __contains__(self, who: Waiting) -> bool:
        """Whether this one waits."""
        return who in self._waiting

    def _call(self) -> None:
        self._called = True
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._called = False
        if not self._waiting:
            return
        who, _ = self._waiting.popitem(last=False)
        if self._waiting:
            self._call()
        who.advance()

"""Fair queue for unauthenticated requests.

In each event-loop iteration as many of them start as authenticated requests were served in the
one before, and at least one. So a flood of bad keys delays other traffic by one request, and a
flood of good ones does not shut out clients whose key is still to be checked.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import OrderedDict
from typing import Protocol


class Resumable(Protocol):
    """What can wait in the queue."""

    def resume(self) -> None:
        """It is this one's turn."""


class FairQueue:
    """First in, first out; each `Resumable` has at most one place."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.served = 0
        """Authenticated requests served since the last turn; connections count them here."""
        self._loop = loop
        self._waiting: OrderedDict[Resumable, None] = OrderedDict()
        self._scheduled = False

    def enqueue(self, entry: Resumable) -> None:
        """Resume ``entry`` after all that wait already; it keeps a place that it has."""
        self._waiting.setdefault(entry)
        if not self._scheduled:
            self.served = 0
            self._schedule()

    def cancel(self, entry: Resumable) -> None:
        """Remove ``entry`` if it waits."""
        self._waiting.pop(entry, None)

    def _schedule(self) -> None:
        # The loop reads its sockets before it runs this, so newly arrived requests go first.
        self._scheduled = True
        self._loop.call_soon(self._resume_next)

    def _resume_next(self) -> None:
        self._scheduled = False
        turns, self.served = max(1, self.served), 0
        batch = [
            self._waiting.popitem(last=False)[0] for _ in range(min(turns, len(self._waiting)))
        ]
        if self._waiting:
            self._schedule()
        for entry in batch:
            entry.resume()

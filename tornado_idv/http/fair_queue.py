"""Fair queues limit how many waiting requests start in one event-loop iteration.

A thousand clients may pipeline, or send batches or invalid requests. Without a bound each iteration
is then as long as a thousand requests, and a new client waits for several iterations. So requests
of authenticated clients that are pipelined, or that the fast path does not answer, start for
`AUTHENTICATED_BUDGET` seconds. The rest start in later iterations.

Requests of connections without a valid key start one per iteration, and one more for each
millisecond of the iteration. A rejected request takes about 0.2 ms, most of it in a later
iteration: the queue cannot measure it there. So a flood of invalid keys takes a fraction of the
time of a busy service, and long iterations of a busy service do not starve new clients.

These connections are in two classes, served alternately: *new* ones, without a response yet, and
*rejected* ones, without a valid key in their last request. A connection waits for the earlier ones
of its class, and for as many of the other class. So any number of rejected connections delays a
new one by one request, and new connections do not starve rejected ones.

Not bounded: clients with a new connection for every guess are all new. The next new client waits
for those ahead of it, up to ``server.max_connections``. Clients with shared connections of a proxy
share their class. Fairness by client address would not help: behind a proxy the address may be the
same for all.
"""

from __future__ import annotations

import time
from asyncio import AbstractEventLoop
from collections import OrderedDict
from collections.abc import Callable, Iterator

AUTHENTICATED_BUDGET = 0.001
UNAUTHENTICATED_RATE = 1000
_MAX_ELAPSED = 0.05
"""Seconds of an iteration that count at most: it seems longer after the process was suspended."""


Resume = Callable[[], object]
"""The method of a connection that starts its next request."""
_Waiters = OrderedDict[Resume, None]


class FairQueue:
    """Resumes waiters in each iteration of the loop, in order of arrival within each class.

    A waiter is resumed at most once per iteration, and at least one is. Waiters are resumed for
    ``budget`` seconds of an iteration, and for at least ``rate`` per second of its length.
    ``timer`` returns seconds.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        timer: Callable[[], float] = time.perf_counter,
        *,
        budget: float = 0.0,
        rate: float = 0.0,
    ) -> None:
        self._loop = loop
        self._timer = timer
        self._budget = budget
        self._rate = rate
        self._classes: tuple[_Waiters, _Waiters] = OrderedDict(), OrderedDict()
        self._turn = 1  # the class of the last resumed waiter
        self._scheduled = False
        self._scheduled_at = 0.0

    def enqueue(self, resume: Resume, *, rejected: bool = False) -> None:
        """Call ``resume`` once, after all waiters of its class. If it waits, it keeps its position.

        Its class must not change while it waits.
        """
        self._classes[rejected].setdefault(resume)
        if not self._scheduled:
            self._schedule()

    def cancel(self, resume: Resume) -> None:
        """Remove a waiting ``resume``."""
        for waiters in self._classes:
            waiters.pop(resume, None)

    def _schedule(self) -> None:
        self._scheduled = True
        self._scheduled_at = self._timer()
        self._loop.call_soon(self._run)

    def _run(self) -> None:
        now = self._timer()
        until = now + self._budget
        least = 1 + int(min(now - self._scheduled_at, _MAX_ELAPSED) * self._rate)
        try:
            for count, waiters in enumerate(self._turns(), 1):
                if waiters:  # a resumed waiter may have removed others
                    resume, _ = waiters.popitem(last=False)
                    resume()
                if count >= least and self._timer() >= until:
                    break
        finally:
            self._scheduled = False
            if any(self._classes):
                self._schedule()

    def _turns(self) -> Iterator[_Waiters]:
        """Alternate between the classes, once for each present waiter."""
        left = [len(waiters) for waiters in self._classes]
        while any(left):
            self._turn = 1 - self._turn
            if left[self._turn]:
                left[self._turn] -= 1
                yield self._classes[self._turn]

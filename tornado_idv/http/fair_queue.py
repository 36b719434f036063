"""Fair queues limit the number of waiting requests that start per event-loop iteration.

A thousand clients may pipeline, or send batches or invalid requests. Without a limit, an iteration
would then handle a thousand requests, and a new client would wait for several iterations.

The queue of authenticated clients holds pipelined requests, and requests not served by the fast
path. It starts requests for one millisecond per iteration.

The queue of connections without a valid key starts one request per iteration, and one more for each
millisecond of the iteration. It has no budget, because it cannot measure its requests: each takes
about 0.2 ms, but mostly in a later iteration. A flood of invalid keys takes only a fraction of the
time of a busy service. If iterations are long, new clients still do not starve.

The connections without a valid key form two classes, served alternately. A *new* connection has no
response yet. A *rejected* connection had no valid key in its last request. If both classes wait,
each gets every second turn. So any number of rejected connections delays a new connection by one
request, and rejected connections do not starve either.

There is one gap. Clients that open a new connection for every guess are all in the class *new*. The
next new client waits for all of them, at most ``server.max_connections``. Clients that share
connections of a proxy also share a class. Fairness by client address would not help, because
behind a proxy, all clients may have the same address.
"""

from asyncio import AbstractEventLoop
from collections import OrderedDict
from collections.abc import Callable, Iterator

_MAX_ELAPSED = 0.05
"""Maximum seconds of an iteration to count, because a suspended process measures a long time."""
Resume = Callable[[], object]
"""A method of a connection. It starts the next request of this connection."""
_Waiters = OrderedDict[Resume, None]


class FairQueue:
    """Resumes waiting connections in each loop iteration, by order of arrival within each class.

    A run resumes one waiter, and ``rate`` more for each second since the run was scheduled. If this
    takes less than ``budget`` seconds, it resumes further waiters until the budget is used. It
    resumes at most as many waiters as there are at its start. ``timer`` returns seconds.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        timer: Callable[[], float],
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

    def enqueue(self, resume: Resume, *, rejected: bool = False) -> None:
        """Add ``resume`` to the end of its class: ``rejected`` or new. It is called once, later.

        If ``resume`` already waits, it keeps its position. It must not wait in both classes.
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
        self._loop.call_soon(self._run, self._timer())

    def _run(self, scheduled_at: float) -> None:
        now = self._timer()
        until = now + self._budget
        least = 1 + int(min(now - scheduled_at, _MAX_ELAPSED) * self._rate)
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
        """Yield the two classes alternately, each once per waiter that it has at the start."""
        left = [len(waiters) for waiters in self._classes]
        while any(left):
            self._turn = 1 - self._turn
            if left[self._turn]:
                left[self._turn] -= 1
                yield self._classes[self._turn]

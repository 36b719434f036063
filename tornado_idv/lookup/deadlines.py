"""Many deadlines on one event-loop timer, a timeout for a block of code, and cancellation.

Each uncached lookup sets two deadlines, and rarely reaches them. A timer handle or
`asyncio.timeout` for each would take 10 to 25 % of the lookup's time (benchmarks/dispatch.py).
"""

import asyncio
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Generic, Self, TypeVar

Key = TypeVar("Key")

_RESOLUTION = 0.005
"""Minimum seconds from a scan for expired keys to the next scan."""


class DeadlineQueue(Generic[Key]):
    """Keys with a deadline, in one event loop. ``on_expired`` is called with each expired key.

    Times are seconds of the loop's clock.
    """

    def __init__(self, on_expired: Callable[[Key], object]) -> None:
        self._on_expired = on_expired
        self._deadlines: dict[Key, float] = {}
        self._next_scan = inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, key: Key, when: float) -> None:
        """Add a key with its deadline. The caller must `discard` a key that is done earlier."""
        self._deadlines[key] = when
        if when < self._next_scan:
            self._schedule(when)

    def discard(self, key: Key) -> None:
        """Remove a key before its deadline. For an expired key, do nothing."""
        # The timer is not changed: most keys are discarded, and a scan that finds nothing costs
        # less than a new schedule for each of them.
        self._deadlines.pop(key, None)

    def _schedule(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_scan = when
        self._timer = asyncio.get_running_loop().call_at(when, self._scan)

    def _scan(self) -> None:
        now = asyncio.get_running_loop().time()
        for key in [key for key, when in self._deadlines.items() if when <= now]:
            # The callback for one key may discard another.
            if self._deadlines.pop(key, None) is not None:
                self._on_expired(key)
        self._next_scan = inf
        if self._deadlines:
            self._schedule(max(min(self._deadlines.values()), now + _RESOLUTION))


class Timeout:
    """A context manager that cancels its block at ``deadline``, and then raises `TimeoutError`.

    ``deadline`` is a time of the loop's clock. As with `asyncio.timeout_at`, a cancellation
    by other code raises `CancelledError`. ``queue`` must be a ``DeadlineQueue(Timeout.expire)``.
    """

    __slots__ = ("_cancellations", "_deadline", "_queue", "_task", "expired")

    def __init__(self, queue: "DeadlineQueue[Timeout]", deadline: float) -> None:
        self._queue = queue
        self._deadline = deadline
        self.expired = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout needs a task to cancel")
        self._task = task
        self._cancellations = task.cancelling()
        self._queue.add(self, self._deadline)
        return self

    def expire(self) -> None:
        """Cancel the block, because its deadline has passed."""
        self.expired = True
        self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.expired:
            self._queue.discard(self)
        elif self._task.uncancel() <= self._cancellations and kind is asyncio.CancelledError:
            raise TimeoutError from error


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled.

    If not, a caught `CancelledError` means that an awaited task or future was cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

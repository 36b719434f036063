"""Many deadlines behind one timer, and a limit to how long a block may take.

Each lookup that no cache answers has two deadlines, hardly ever met. A timer of the event
loop for each, or `asyncio.timeout`, would be a tenth to a quarter of the lookup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Generic, Self, TypeVar

Key = TypeVar("Key")

_APART = 0.005
"""Seconds between two looks at who is due, however many are."""


class Deadlines(Generic[Key]):
    """Those who may not wait for ever, in one event loop: ``over`` is told who waited too long.

    Times are those of the loop's clock.
    """

    def __init__(self, over: Callable[[Key], object]) -> None:
        self._over = over
        self._due: dict[Key, float] = {}
        self._next_look = inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, key: Key, when: float) -> None:
        """Sets a deadline, to be dropped when it is met."""
        self._due[key] = when
        if when < self._next_look:
            self._look_at(when)

    def drop(self, key: Key) -> None:
        """Takes a deadline back, if it is not over."""
        self._due.pop(key, None)

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_look = when
        self._timer = asyncio.get_running_loop().call_at(when, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        for key in [key for key, due in self._due.items() if due <= now]:
            if self._due.pop(key, None) is not None:
                self._over(key)
        self._next_look = inf
        if self._due:
            self._look_at(max(min(self._due.values()), now + _APART))


class TimeLimit:
    """Cancels what the block awaits when it is ``until``, which then raises `TimeoutError`.

    As with `asyncio.timeout_at`, a cancellation from elsewhere stays one. ``deadlines`` are
    `TimeLimit.end`'s.
    """

    __slots__ = ("_cancellations", "_deadlines", "_task", "_until", "is_over")

    def __init__(self, deadlines: Deadlines[TimeLimit], until: float) -> None:
        self._deadlines = deadlines
        self._until = until
        self.is_over = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can be limited")
        self._task = task
        self._cancellations = task.cancelling()
        self._deadlines.add(self, self._until)
        return self

    def end(self) -> None:
        """The time is over."""
        self.is_over = True
        self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.is_over:
            self._deadlines.drop(self)
        elif self._task.uncancel() <= self._cancellations and kind is asyncio.CancelledError:
            raise TimeoutError from error

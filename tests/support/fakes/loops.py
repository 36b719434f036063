"""Event loops without sockets: a test runs one step by step, the other skips all waiting."""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class SteppedLoop(asyncio.SelectorEventLoop):
    """Stops when nothing is ready, and never waits."""

    now = 1_800_000_000.0

    def __init__(self) -> None:
        super().__init__(_NoEvents(self._stop_when_idle))

    def time(self) -> float:
        return self.now

    def turn(self) -> None:
        """Run one iteration."""
        self.call_soon(self.stop)
        self.run_forever()

    def settle(self) -> None:
        """Run iterations until nothing is ready."""
        self.run_forever()
        while self._ready:  # type: ignore[attr-defined]
            self.run_forever()

    def forward(self, seconds: float) -> None:
        """Advance the clock in steps that are shorter than a sweep."""
        for _ in range(round(seconds / 0.05)):
            self.now += 0.05
            self.settle()

    def _stop_when_idle(self, _: float | None) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            self.stop()  # after this iteration, which runs the timers that are due


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs hours in seconds; where nothing is left to wait for, it raises `RuntimeError`."""

    now = 1_000.0

    def __init__(self) -> None:
        super().__init__(_NoEvents(self._put_forward))

    def time(self) -> float:
        return self.now

    def _put_forward(self, timeout: float | None) -> None:
        if timeout is None:
            raise RuntimeError("nothing will ever happen")
        self.now += max(timeout, 0.0)


class _NoEvents(selectors.SelectSelector):
    """Reports no events, and calls ``wait`` instead of asking the system."""

    def __init__(self, wait: Callable[[float | None], None]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> list[Any]:
        self._wait(timeout)
        return []

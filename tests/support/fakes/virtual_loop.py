"""An event loop without sockets whose clock advances to the next timer when nothing is ready."""

import asyncio
import selectors
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs hours in seconds; where nothing is left to wait for, it raises `RuntimeError`."""

    now = 1_000.0

    def __init__(self) -> None:
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now


class _Selector(selectors.SelectSelector):
    """Reports no events: in place of waiting, it puts the clock forward."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen")
        self._loop.now += max(timeout, 0.0)
        return []

"""The requests being answered just now, so that a stop can wait for them."""

from __future__ import annotations

import asyncio


class InFlight:
    """Counts requests from the moment they are read until they are answered."""

    def __init__(self) -> None:
        self._requests: set[object] = set()
        self._none = asyncio.Event()
        self._none.set()

    def add(self, request: object) -> None:
        """A request was read."""
        self._requests.add(request)
        self._none.clear()

    def remove(self, request: object) -> None:
        """A request was answered; one that was never counted is no error."""
        self._requests.discard(request)
        if not self._requests:
            self._none.set()

    async def drained(self) -> None:
        """Returns once no request is left."""
        await self._none.wait()

"""Shared limits in this process, and machines that exchange what a key uses by them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from support.fakes.clock_and_backends import Ticker
from tornado_idv.interfaces.shared import LimitUse, SharedLimits, SharedLimitsOptions
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.limits.key_limits import KeyLimiter
from tornado_idv.limits.limit_exchange import LimitExchange
from tornado_idv.metrics.counters import Counters
from tornado_idv.units import Rate

KEY = ApiKey("shop", b"shop")


class FakeSharedLimits(SharedLimits[SharedLimitsOptions]):
    """Keeps TATs by a clock of its own; ``error`` is raised by each exchange while it is set."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(SharedLimitsOptions(kind="fake"))
        self.tats: dict[str, float] = {}
        self.calls: list[tuple[float, Sequence[LimitUse]]] = []
        self.error: BaseException | None = None
        self.close_error: Exception | None = None
        self.exchanged = asyncio.Event()
        self._clock = clock

    async def exchange(self, since: float, uses: Sequence[LimitUse]) -> Sequence[float]:
        self.calls.append((since, uses))
        self.exchanged.set()
        if self.error is not None:
            raise self.error
        now = self._clock()
        for use in uses:
            self.tats[use.name] = max(self.tats.get(use.name, 0.0), now - since) + use.seconds
        return [self.tats[use.name] - now for use in uses]

    async def close(self) -> None:
        if self.close_error is not None:
            raise self.close_error


@dataclass
class Machine:
    """One machine with its limits and its exchange; its clock differs from that of others."""

    limiter: KeyLimiter
    exchange: LimitExchange

    @classmethod
    def make(
        cls, shared: FakeSharedLimits, clock: Ticker, *rates: Rate | None, offset: float = 0.0
    ) -> Machine:
        def own_clock() -> float:
            return clock() + offset

        limiter = KeyLimiter(*rates, clock=own_clock, capacity=8)
        return cls(limiter, LimitExchange(shared, limiter, Counters(), clock=own_clock))

    def allowed(self, attempts: int = 1, key: ApiKey = KEY) -> int:
        """Return how many of some requests at once are allowed."""
        limits = self.limiter.of(key)
        assert limits is not None
        return sum(limits.acquire() is None for _ in range(attempts))

    def missed(self, lookups: int = 1) -> int:
        """Return how many of some lookups, one after the other and all misses, are allowed."""
        limits = self.limiter.of(KEY)
        assert limits is not None
        count = 0
        while count < lookups and limits.acquire() is None:
            limits.charge_miss()
            count += 1
        return count

"""Time that a test moves, and sources of users that it controls."""

import asyncio
from typing import Any

from tornado_idv.errors import LookupFailed
from tornado_idv.interfaces.backend import Backend, BackendOptions
from tornado_idv.lookup.cache import AnswerCache, CacheLimits
from tornado_idv.lookup.single_flight import SingleFlight
from tornado_idv.model import ByCard, Query, User


class Ticker:
    """A timer that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class LoopClock:
    """The running loop's clock, which a test puts forward: what is due by then happens."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._time = loop.time
        self._ahead = 0.0
        setattr(loop, "time", self)  # noqa: B010 a method is replaced, on this loop alone

    def __call__(self) -> float:
        return self._time() + self._ahead

    def stop(self) -> None:
        """Let time pass by `forward` and `advance` alone."""
        now = self._time()
        self._time = lambda: now

    def forward(self, seconds: float) -> None:
        self._ahead += seconds

    async def advance(self, seconds: float) -> None:
        """Put the clock forward, and return once the timers that are due by then have fired."""
        fired = asyncio.Event()
        asyncio.get_running_loop().call_at(self() + seconds, fired.set)
        self.forward(seconds)
        await fired.wait()


class Source:
    """Gives the answer it is set to, and counts how often it was asked.

    Who asks while it is held waits for the ``release``, or for the end of days. Who
    cancels a stubborn one waits for the release all the same.
    """

    def __init__(self, answer: object = None, *, stubborn: bool = False) -> None:
        self.answer = answer
        self.stubborn = stubborn
        self.asked = 0
        self.under_way = 0
        self.most_under_way = 0
        self.begun = asyncio.Event()
        self.hold().set()

    def hold(self) -> asyncio.Event:
        """The event that who asks from now on waits for."""
        self.begun.clear()
        self.gate = asyncio.Event()
        return self.gate

    def release(self) -> None:
        self.gate.set()

    async def ask(self, query: Query) -> Any:
        answer = self.answer
        self.asked += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.begun.set()
        try:
            await self._pass(self.gate)
        finally:
            self.under_way -= 1
        if isinstance(answer, LookupFailed):
            raise answer.copy()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _pass(self, gate: asyncio.Event) -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise


class FakeBackend(Backend[BackendOptions]):
    """A backend in front of a `Source`."""

    def __init__(self, answer: object = None, name: str = "crm", **options: Any) -> None:
        super().__init__(BackendOptions(name=name, kind="fake", **options))
        self.source = Source(answer)

    async def find(self, query: Query) -> User | None:
        user: User | None = await self.source.ask(query)
        return user


class CardsOnly(FakeBackend):
    """Knows nothing of nicknames."""

    @property
    def serves(self) -> frozenset[type[Query]]:
        return frozenset({ByCard})


def running(flights: SingleFlight) -> set[asyncio.Task[None]]:
    """The tasks of the lookups that are running."""
    return {call.task for call in flights._calls.values()}  # noqa: SLF001 - lookups that no caller waits for


def steady_cache(limits: CacheLimits | None = None, ticker: Ticker | None = None) -> AnswerCache:
    """A cache whose entries live to the second: chance takes nothing off."""
    return AnswerCache(limits or CacheLimits(), ticker or Ticker(), lambda: 0.0)

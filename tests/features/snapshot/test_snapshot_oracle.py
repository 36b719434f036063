"""Random restarts, changes, purges and outages: every answer is compared with what is allowed."""

import asyncio
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from support.fakes.clock_and_backends import Ticker
from support.fakes.snapshots import STALE, TTL, Process, Source
from tornado_idv.errors import LookupFailed, Unavailable
from tornado_idv.interfaces.shared import Purge
from tornado_idv.model import ByCard, ByNickname, Query, User

USERS: dict[str, tuple[Query, ...]] = {
    "first": (ByNickname("alice"), ByCard("1")),
    "second": (ByNickname("bob"), ByCard("2")),
}
QUERIES = [query for queries in USERS.values() for query in queries]
BACKEND_OF = {query: name for name, queries in USERS.items() for query in queries}


class Live(Source):
    """A source of one user, whose plan is the number of changes; the first reports each change."""

    def __init__(self, name: str, plans: dict[str, int], down: set[str]) -> None:
        super().__init__(name, tracks=name == "first")
        self.plans, self.down = plans, down
        self.content = str(plans[name])

    async def find(self, query: Query) -> User | None:
        if self.name in self.down:
            raise Unavailable("down")
        if BACKEND_OF[query] != self.name:
            return None
        nickname, card = USERS[self.name]
        return User(str(self.plans[self.name]), card.text, nickname.text.removeprefix("@"))

    def change(self) -> None:
        self.content = str(self.plans[self.name])
        if self.tracks:
            self.notify_changed()


class Oracle:
    """Knows when each answer was looked up, and what was purged since."""

    def __init__(self) -> None:
        self.found = defaultdict[tuple[Query, str], list[tuple[float, int]]](list)
        self.purged: dict[Query, int] = dict.fromkeys(QUERIES, -1)
        self.events = 0
        self.served: Counter[str] = Counter()

    def purge(self, *queries: Query) -> None:
        self.events += 1
        for query in queries:
            self.purged[query] = self.events

    def allows(self, query: Query, plan: str, now: float, started: float) -> bool:
        """Return whether a lookup not before the last purge, and recent enough, found this plan.

        In the process that looked it up the time to live comes on top.
        """
        return any(
            event >= self.purged[query] and now - time < STALE + (TTL if time >= started else 0)
            for time, event in self.found[query, plan]
        )


class Run:
    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.path, self.wall = path, Ticker()
        self.plans, self.down, self.oracle = dict.fromkeys(USERS, 0), set[str](), Oracle()
        self.started = self.failed_until = 0.0

    async def start(self) -> None:
        self.started = self.wall.now
        self.backends = [Live(name, self.plans, self.down) for name in USERS]
        self.process = Process(self.path, self.wall, *self.backends)
        await self.process.start()

    async def look_up(self) -> None:
        query = self.random.choice(QUERIES)
        name, now = BACKEND_OF[query], self.wall.now
        cached = self.process.directory.get_cached(query)
        may_ask = not self.down & {"first", name}
        try:
            answer = await self.process.directory.find(query)
        except LookupFailed:
            assert not may_ask or self.process.ticker.now < self.failed_until
            self.failed_until = self.process.ticker.now + 2
            self.oracle.served["failed"] += 1
            return
        assert answer.user is not None
        if cached is None and not answer.stale:
            self.oracle.found[query, answer.user.plan].append((now, self.oracle.events))
        assert self.oracle.allows(query, answer.user.plan, now, self.started), (query, answer)
        if name == "first":
            assert answer.user.plan == str(self.plans[name])
        restored = answer.stale and answer.since < 1000  # before the timer of the process began
        self.oracle.served["restored" if restored else "stale" if answer.stale else "found"] += 1

    def change(self, *, running: bool = True) -> None:
        name = self.random.choice([*USERS])
        self.plans[name] += 1
        if name == "first":
            self.oracle.purge(*QUERIES)
        if running:
            self.backends[[*USERS].index(name)].change()

    def purge(self) -> None:
        choice = self.random.random()
        if choice < 0.6:
            query = self.random.choice(QUERIES)
            self.oracle.purge(*USERS[BACKEND_OF[query]])
            self.process.directory.purge(Purge(queries=(query,)))
        elif choice < 0.8:
            name = self.random.choice([*USERS])
            self.oracle.purge(*USERS[name])
            self.process.directory.purge(Purge((name,)))
        else:
            self.oracle.purge(*QUERIES)
            self.process.directory.purge(Purge())

    async def write(self) -> None:
        """Write, with a change or a purge in the middle at times."""
        writing = asyncio.create_task(self.process.write())
        if self.random.random() < 0.4:
            for _ in range(self.random.randrange(5)):
                await asyncio.sleep(0)
            self.random.choice([self.purge, self.change])()
        await writing
        await self.process.snapshots.purged()

    async def restart(self) -> None:
        if self.random.random() < 0.5:
            await self.process.stop()
        self.process.file.release()
        self.wall.now += self.random.choice([0, 0, 1, 60, 600, 3000])
        if self.random.random() < 0.2:
            self.change(running=False)
        await self.start()

    async def step(self) -> None:
        choice = self.random.random()
        if choice < 0.7:
            await self.look_up()
        elif choice < 0.78:
            seconds = self.random.choice([3, 10, 200, 301])
            self.wall.now += seconds
            self.process.ticker.now += seconds
        elif choice < 0.83:
            self.down ^= {self.random.choice([*USERS])}
        elif choice < 0.88:
            await self.write()
        elif choice < 0.96:
            await self.restart()
        else:
            self.random.choice([self.purge, self.change])()
            await self.process.snapshots.purged()


@pytest.mark.parametrize("seed", range(5))
async def test_no_answer_is_too_old_or_from_before_a_purge(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path / "answers.snapshot", seed)
    await run.start()
    for _ in range(500):
        await run.step()
    served = run.oracle.served
    assert served["restored"] > 0, served
    assert served["found"] > 5, served

"""Purges of one change, of which every process was notified: one generation, and none too early."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from idv_redis.purge_log import covers
from idv_redis.shared_cache import RedisSharedCache
from support.databases.redis_replicas import Replica, prepare, until
from support.databases.redis_server import RedisServer, running_server
from support.fakes.directories import QUERY
from tornado_idv import ByCard, ByNickname, Purge, SharedAnswer, SharedResult, User

pytestmark = pytest.mark.slow

BOB = ByNickname("bob")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _empty_server(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(server, monkeypatch)


@asynccontextmanager
async def several(server: RedisServer, count: int) -> AsyncIterator[list[Replica]]:
    every = [Replica(server) for _ in range(count)]
    for each in every:
        await each.cache.open()
    try:
        await until(lambda: all(each.cache._is_following for each in every))
        yield every
    finally:
        for each in every:
            await each.tier.close()


def generation(server: RedisServer) -> int:
    return int(server.run("GET", "idv:generation").split()[1])


async def test_a_change_of_which_all_are_notified_begins_one_generation(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RedisSharedCache, "join_window", 0.2)  # also on a busy machine
    server.run("CONFIG", "RESETSTAT")
    async with several(server, 10) as every:
        for _ in range(2):
            for each in every:
                await each.find_shared()
                each.backend.source.answer = User("Pro", "4000", "alice")
            for each in every:  # each is notified at another time
                each.directory.purge(Purge(queries=(QUERY, ByCard("4000"))))
                await asyncio.sleep(0.0005)
            await until(lambda: not any(each.tier.pending_purges for each in every))
            assert [await each.find_shared() for each in every] == ["Pro"] * 10
        assert generation(server) == 2
        assert b"cmdstat_publish:calls=2," in server.run("INFO", "commandstats")


async def test_a_purge_is_not_left_to_one_that_began_before_the_change(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its message has not been received when the change is noticed."""
    monkeypatch.setattr(RedisSharedCache, "interval", 60.0)
    async with several(server, 2) as (first, second):
        async with second.cache._state:  # it receives nothing
            await first.cache.purge(Purge(queries=(QUERY,)))
            purging = asyncio.create_task(second.cache.purge(Purge(queries=(QUERY,))))
            await until(lambda: generation(server) == 2)
        await purging


async def test_a_process_purges_again_what_it_purges_for_others(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have cached the user after its own purge, and before the change of the other."""
    monkeypatch.setattr(RedisSharedCache, "join_window", 0.1)
    monkeypatch.setattr(RedisSharedCache, "interval", 60.0)
    purge = Purge(queries=(QUERY,))
    async with several(server, 2) as (first, second):
        server.run("CONFIG", "RESETSTAT")
        first.directory.purge(purge)
        purging = asyncio.create_task(first.tier.wait_until_purged())
        await until(lambda: b"cmdstat_get:" in server.run("INFO", "commandstats"))
        await first.directory.find(QUERY)
        await second.cache.purge(purge)
        assert await purging
        assert generation(server) == 1
        assert first.directory.get_cached(QUERY) is None


@pytest.mark.parametrize(
    ("begun", "purge", "expected"),
    [
        ([Purge(queries=(QUERY,)), Purge(queries=(BOB,))], Purge(queries=(BOB, QUERY)), True),
        ([Purge(("a",)), Purge(queries=(BOB,))], Purge(("a",), (BOB,)), True),
        ([Purge()], Purge(("a",), (BOB,)), True),
        ([Purge(queries=(QUERY,))], Purge(queries=(BOB, QUERY)), False),
        ([Purge(queries=(ByCard("4000"),))], Purge(queries=(QUERY,)), False),
        ([Purge(("a",))], Purge(("a", "b")), False),
        ([Purge(("a",), (QUERY,))], Purge(), False),
        ([], Purge(), False),
    ],
)
def test_purges_cover_what_they_name_together(
    begun: list[Purge], purge: Purge, *, expected: bool
) -> None:
    assert covers(begun, purge) is expected


class Model:
    """Users with a version; every process is notified of an edit, or one that an operator chose.

    A process may use no entry with an earlier version, once it has purged what it was notified of.
    Neither may it keep one for itself, once it has received all purges.
    """

    def __init__(self, caches: list[RedisSharedCache], chance: random.Random) -> None:
        self.caches = caches
        self.chance = chance
        self.versions = dict.fromkeys("abc", 0)
        self.purged: Counter[tuple[RedisSharedCache, str]] = Counter()
        self.hits = 0
        self.kept: dict[tuple[RedisSharedCache, str], int] = {}
        self.purges: Counter[RedisSharedCache] = Counter()
        for cache in caches:
            cache.on_purge(partial(self.drop, cache))

    def drop(self, cache: RedisSharedCache, purge: Purge) -> None:
        """Purge what a process keeps for itself; nothing that is being looked up is kept."""
        self.purges[cache] += 1
        for query in purge.queries or map(ByNickname, self.versions):
            self.kept.pop((cache, query.text.removeprefix("@")), None)

    async def pause(self, longest: float) -> None:
        await asyncio.sleep(self.chance.random() * longest)

    async def edit(self, name: str) -> None:
        self.versions[name] += 1
        notified = self.chance.choice([self.caches, [self.chance.choice(self.caches)]])
        await asyncio.gather(*(self.notify(each, name) for each in notified))

    async def notify(self, cache: RedisSharedCache, name: str) -> None:
        version = self.versions[name]
        await self.pause(0.008)
        purge = Purge(queries=(ByNickname(name),))
        self.drop(cache, purge)
        await cache.purge(purge)
        self.purged[cache, name] = max(self.purged[cache, name], version)

    async def look_up(self, name: str) -> None:
        cache, query = self.chance.choice(self.caches), ByNickname(name)
        least = self.purged[cache, name]
        result = await cache.get("", query)
        if result.answer is not None and result.answer.user is not None:
            assert int(result.answer.user.plan) >= least
            self.hits += 1
            return
        version, purges = self.versions[name], self.purges[cache]
        user = User(str(version), "4000", name)
        await self.pause(0.03)
        if purges == self.purges[cache]:
            self.kept[cache, name] = version
        expires = time.time() + 60
        answer = SharedAnswer(user, "crm", expires, expires)
        await cache.put("", query, SharedResult(result.generation, answer))

    async def run(self) -> None:
        """Edits and lookups at once, and then lookups by every process."""
        running = []
        for _ in range(15):
            name = self.chance.choice("abc")
            step = self.chance.choice([self.edit, self.look_up, self.look_up, self.look_up])
            running.append(asyncio.create_task(step(name)))
            await self.pause(0.003)
        await asyncio.gather(*running)
        await until(lambda: len({each._generation for each in self.caches}) == 1)
        for (_, name), version in self.kept.items():
            assert version == self.versions[name]
        for name in self.versions:
            await asyncio.gather(*(self.look_up(name) for _ in self.caches))


async def test_no_entry_from_before_a_change_survives_it(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edits of which all are notified at random times, while all look users up slowly."""
    monkeypatch.setattr(RedisSharedCache, "join_window", 0.004)
    async with several(server, 4) as every:
        model = Model([each.cache for each in every], random.Random(1))
        for _ in range(10):
            await model.run()
        assert model.hits > 30

"""Purges of which a process received no message, or which the Redis server lost."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from idv_redis.options import RedisCacheOptions
from idv_redis.shared_cache import RedisSharedCache
from support.databases.redis_replicas import SECRET, replicas
from support.databases.redis_server import RedisServer, running_server
from support.fakes.directories import ALICE, QUERY, counts
from support.http.http_server import until
from tornado_idv import ByCard, ByNickname, Purge, Query, User

pytestmark = pytest.mark.slow
BOB = ByNickname("bob")


async def test_no_answer_is_wrong_after_random_purges(server: RedisServer) -> None:
    """Whichever replica looks up, changes and purges; each response is compared with the truth."""
    random = Random(7)
    users = [User("0", str(number), f"user{number}") for number in range(4)]
    async with replicas(server) as both:
        for step in range(300):
            number = random.randrange(len(users))
            user = users[number]
            query: Query = random.choice([ByNickname(user.nickname), ByCard(user.card_number)])
            if random.random() < 0.3:
                users[number] = user = User(str(step), user.card_number, user.nickname)
                purge = random.choice([Purge((), (query,)), Purge(("crm",)), Purge()])
                replica = random.choice(both)
                replica.backend.source.answer = user
                replica.directory.purge(purge)
                assert await replica.tier.wait_until_purged()
            replica = random.choice(both)
            replica.backend.source.answer = user
            assert await replica.find_shared(query) == user.plan
        hits = sum(each.tier.counted.results["hit"] for each in both)
    assert hits > 50


async def test_a_purge_of_which_no_message_came_is_noticed(server: RedisServer) -> None:
    async with replicas(server) as (first, second):
        await second.find()
        first.cache._channel = "another"  # noqa: SLF001 - what another service has written
        await first.cache.purge(Purge(queries=(QUERY,)))
        await second.wait_for(Purge())
        assert second.directory.get_cached(QUERY) is None
        assert await second.find() == "Free"
        assert counts([second.backend]) == [2]


SAME, OTHER = b"e" * 56, b"f" * 56


@pytest.mark.parametrize(
    ("known", "epoch", "generation", "is_of_user"),
    [
        ((SAME, 5), SAME, 6, True),
        ((SAME, 5), SAME, 7, False),
        ((SAME, 5), SAME, 5, False),
        ((SAME, 5), OTHER, 6, False),
        (None, SAME, 1, False),
    ],
    ids=["next", "one was lost", "repeated or invented", "marks were lost", "first"],
)
async def test_a_message_that_does_not_follow_the_last_purges_everything(
    known: tuple[bytes, int] | None, epoch: bytes, generation: int, *, is_of_user: bool
) -> None:
    given = {"kind": "redis", "url": "redis://h", "secret": SECRET, "timeout": "1s"}
    cache = RedisSharedCache(RedisCacheOptions.model_validate(given))
    cache._known, purges, purge = known, list[Purge](), Purge(queries=(BOB,))  # noqa: SLF001 - what another service has written
    cache.on_purge(purges.append)
    await cache._receive(b"%b %d %b" % (epoch, generation, cache._message(purge)))  # noqa: SLF001 - what another service has written
    assert purges == [purge if is_of_user else Purge()]
    await cache._receive(b"%b %d %b" % (epoch, generation + 1, cache._message(purge)))  # noqa: SLF001 - what another service has written
    assert purges[1:] == [purge]


async def test_a_reconnection_during_which_nothing_was_purged_keeps_what_is_cached(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(server) as (first, _):
        await first.find()
        compared, compare = asyncio.Event(), first.cache._compare  # noqa: SLF001 - what another service has written

        async def compare_and_note() -> None:
            await compare()
            compared.set()

        monkeypatch.setattr(first.cache, "_compare", compare_and_note)  # nothing tells its end
        monkeypatch.setattr("idv_redis.shared_cache._PAUSE", 60.0)  # it connects at once
        monkeypatch.setattr(RedisSharedCache, "interval", 60.0)
        server.run("CLIENT", "KILL", "TYPE", "pubsub")
        purge = Purge(queries=(BOB,))
        await compared.wait()
        await first.cache.purge(purge)
        await first.wait_for(purge)
        assert Purge() not in first.purges
        assert first.directory.get_cached(QUERY) is not None


async def test_another_primary_purges_everything_everywhere(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Others may have left the old one before the last purge that it received."""
    async with replicas(server) as (first, second):
        generation = server.run("HGET", first.cache._marks, "generation")  # noqa: SLF001 - what another service has written
        first.cache._client.primary = "old:1"  # noqa: SLF001 - what another service has written
        await until(lambda: first.cache._primary == "old:1")  # noqa: SLF001 - what another service has written
        assert "another server has become the primary" in caplog.text  # messages go there, too
        assert server.run("HGET", first.cache._marks, "generation") == generation  # noqa: SLF001 - what another service has written
        first.cache._client.primary = "new:1"  # noqa: SLF001 - what another service has written
        await second.wait_for(Purge())


async def test_a_server_that_restarts_from_an_older_file_has_no_valid_entry(tmp_path: Path) -> None:
    with running_server("--save", "", "--appendonly", "no", "--dir", str(tmp_path)) as server:
        async with replicas(server) as (first, second):
            await first.find()
            server.run("SAVE")
            first.directory.purge(Purge(queries=(QUERY,)))
            assert await first.tier.wait_until_purged()
            second.purges.clear()
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await second.wait_for(Purge())
            second.backend.source.answer = None
            assert (await second.cache.get("", QUERY)).answer is None


@pytest.mark.parametrize("others", [0, 3])
async def test_evicted_marks_leave_no_valid_entry(server: RedisServer, others: int) -> None:
    async with replicas(server) as (first, second):
        await first.cache.purge(Purge(queries=(BOB,)))
        await first.find()
        await first.cache.purge(Purge(queries=(QUERY,)))
        server.run("DEL", first.cache._marks)  # noqa: SLF001 - what another service has written
        for _ in range(others):
            await second.cache.purge(Purge(queries=(BOB,)))
        assert (await first.cache.get("", QUERY)).answer is None
        await second.wait_for(Purge())


async def test_marks_are_bounded(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_READ", "_PURGE", "_COMPARE"):
        script = getattr(__import__("idv_redis.shared_cache").shared_cache, name)
        assert "100000" in script
        monkeypatch.setattr(f"idv_redis.shared_cache.{name}", script.replace("100000", "20"))
    async with replicas(server) as (first, second):
        await first.find()
        for number in range(60):
            await first.cache.purge(Purge(queries=(ByCard(str(number)),)))
            length = int(server.run("HLEN", first.cache._marks).strip(b":\r\n"))  # noqa: SLF001 - what another service has written
            assert length <= 21
        assert (await second.cache.get("", QUERY)).answer is None


async def test_purges_are_received_again_after_marks_that_cannot_be(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with replicas(server) as (first, _):
        server.run("HSET", first.cache._marks, "generation", "x")  # noqa: SLF001 - what another service has written
        await until(lambda: "are not received: ValueError; trying again" in caplog.text)
        server.run("DEL", first.cache._marks)  # noqa: SLF001 - what another service has written
        await first.wait_for(Purge())
        first.backend.source.answer = ALICE
        assert await first.find() == "Free"

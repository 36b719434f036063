"""Purges of which a process received no message, or which the Redis server lost."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import Any

import pytest

from idv_redis.shared_cache import RedisSharedCache, Sealer
from support.databases.redis_replicas import replicas, until
from support.databases.redis_server import RedisServer
from support.fakes.directories import QUERY, counts
from tornado_idv import ByCard, ByNickname, Purge, SharedResult, Unavailable

pytestmark = pytest.mark.slow


async def test_a_purge_of_which_no_message_came_is_followed_from_what_is_kept(
    server: RedisServer,
) -> None:
    """Without a purge of everything; also if its message comes later than the next one."""
    async with replicas(server) as (first, second):
        await first.find()
        purges = [Purge(queries=(ByNickname(name),)) for name in ("bob", "carol", "dave")]
        execute = first.cache._client.execute

        async def lose(*command: str | bytes | int) -> Any:
            return await execute(*command[:-1], "another channel")

        first.cache._client.execute = lose  # type: ignore[method-assign]
        await first.cache.purge(purges[0])
        await second.wait_for(purges[0])
        await first.cache.purge(purges[1])
        first.cache._client.execute = execute  # type: ignore[method-assign]
        await first.cache.purge(purges[2])
        await second.wait_for(purges[2])
        await until(lambda: second.cache._generation == 3)
        assert purges[1] in second.purges
        assert Purge() not in second.purges
        assert await second.find() == "Free"
        assert counts([second.backend]) == [0]


async def test_a_purge_is_kept_and_announced_with_its_generation_or_not_at_all(
    server: RedisServer,
) -> None:
    """Wherever the connection is lost; a generation that is not kept would purge everything."""
    async with replicas(server) as (first, second):
        execute, begun = first.cache._client.execute, asyncio.Event()

        async def run_until_begun(*command: str | bytes | int) -> Any:
            if begun.is_set():
                raise Unavailable("x")
            if command[0] == "EVAL":
                begun.set()
            return await execute(*command)

        first.cache._client.execute = run_until_begun  # type: ignore[method-assign]
        purge = Purge(queries=(QUERY,))
        with suppress(Unavailable):
            await first.cache.purge(purge)
        await until(lambda: second.cache._generation == 1)
        assert second.purges == [purge]


async def test_purges_of_several_replicas_at_once_have_a_generation_each(
    server: RedisServer,
) -> None:
    async with replicas(server) as both:
        named = [Purge(queries=(ByCard(str(number)),)) for number in range(10)]
        caches = itertools.cycle(each.cache for each in both)
        await asyncio.gather(*(next(caches).purge(each) for each in named))
        await until(lambda: {each.cache._generation for each in both} == {10})
        for replica in both:
            assert set(replica.purges) == set(named)


async def test_a_kept_purge_of_another_generation_is_not_applied_for_a_missing_one(
    server: RedisServer,
) -> None:
    async with replicas(server) as (first, second):
        await first.cache.purge(Purge(queries=(ByNickname("bob"),)))
        server.run("SET", "idv:generation", "1000")
        await second.wait_for(Purge())
        second.purges.clear()
        server.run("SET", "idv:generation", "1001")
        await second.wait_for(Purge())


async def test_a_purge_that_was_missed_is_noticed_by_the_generation(server: RedisServer) -> None:
    """Whether its message was lost, or the connection was."""
    async with replicas(server) as (first, _):
        await first.find()
        server.run("INCR", "idv:generation")
        await first.wait_for(Purge())
        assert first.directory.get_cached(QUERY) is None
        await first.find()
        first.purges.clear()
        server.run("CLIENT", "KILL", "TYPE", "pubsub")
        server.run("INCR", "idv:generation")
        await first.wait_for(Purge())


async def test_a_purge_is_noticed_among_messages_that_cannot_be_read(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As of processes with another secret, which purge more often than generations are compared."""
    async with replicas(server) as (first, _):
        server.run("INCR", "idv:generation")
        async with asyncio.timeout(5):
            while Purge() not in first.purges:
                server.run("PUBLISH", "idv:purges", "x")
                await asyncio.sleep(0.01)
        assert caplog.text.count("a message about a purge cannot be read: it was written") == 2


async def test_a_message_after_one_that_was_lost_purges_everything(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RedisSharedCache, "interval", 60.0)  # no comparison meanwhile
    async with replicas(server) as (first, _):
        await first.find()
        message = [2, True, "", [], [[False, "bob"]]]
        sealed = Sealer(first.cache.options.secret).seal("idv:purges", message)
        server.run("PUBLISH", "idv:purges", sealed)
        await first.wait_for(Purge())
        assert first.directory.get_cached(QUERY) is None


async def test_entries_from_before_a_purge_that_the_server_forgot_are_misses(
    server: RedisServer,
) -> None:
    """It may have been restarted from an older file."""
    async with replicas(server) as (first, second):
        server.run("SET", "idv:generation", "7")
        await first.wait_for(Purge())
        await first.find()
        key = first.cache._key("", QUERY)
        old = await first.cache._client.execute("GET", key)
        first.purges.clear()
        first.directory.purge(Purge())
        await until(lambda: first.cache._generation == second.cache._generation == 8)
        server.run("SET", "idv:generation", "7")
        server.run("SET", key, old)
        assert (await first.cache.get("", QUERY)).answer is None
        await until(lambda: all((each.cache._generation or 0) > 8 for each in (first, second)))
        assert (await second.cache.get("", QUERY)).answer is None
        await first.find()
    server.run("SET", "idv:generation", "3")
    async with replicas(server) as (first, _):
        assert (await first.cache.get("", QUERY)).answer is None


@pytest.mark.parametrize("present", [2, 3])
async def test_purges_that_the_server_forgot_are_noticed_though_others_came_since(
    server: RedisServer, present: int
) -> None:
    """As after a failover to a replica without the last writes, even if they name the same."""
    async with replicas(server) as (first, second):
        await first.find()
        for name in ("alice", "bob"):
            purge = Purge(queries=(ByNickname(name),))
            await first.cache.purge(purge)
            await second.wait_for(purge)
        messages = [
            first.cache._message(number, Purge(queries=(ByNickname("bob"),)))
            for number in range(1, present + 1)
        ]
        for number, message in enumerate(messages, 1):
            server.run("SET", f"idv:purge:{number}", message)
        server.run("SET", "idv:generation", str(present))
        server.run("CLIENT", "KILL", "TYPE", "pubsub")
        await second.wait_for(Purge())
        async with replicas(server) as (third, _):
            # Without one more generation, what is kept would say that only bob was purged.
            assert (await third.cache.get("", QUERY)).answer is None


async def test_a_reconnection_without_the_last_purge_purges_everything(
    server: RedisServer,
) -> None:
    """Whether others were lost with it cannot be determined."""
    async with replicas(server) as (first, second):
        await first.cache.purge(Purge(queries=(QUERY,)))
        await second.wait_for(Purge(queries=(QUERY,)))
        server.run("DEL", "idv:purge:1")
        server.run("CLIENT", "KILL", "TYPE", "pubsub")
        await second.wait_for(Purge())


async def test_a_counter_that_was_lost_is_noticed_by_the_next_purge(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often purges come: nothing waits for a time without messages."""
    monkeypatch.setattr(RedisSharedCache, "interval", 60.0)
    async with replicas(server) as (first, second):
        for name in ("alice", "bob"):
            await first.cache.purge(Purge(queries=(ByNickname(name),)))
        await until(lambda: second.cache._generation == 2)
        await first.find()
        server.run("DEL", "idv:generation")
        await second.cache.purge(Purge(queries=(QUERY,)))
        await first.wait_for(Purge())
        await second.wait_for(Purge())
        assert (await first.cache.get("", QUERY)).answer is None
        assert int(server.run("GET", "idv:generation").split()[1]) > 2


async def test_its_own_purge_that_the_server_forgot_is_noticed(server: RedisServer) -> None:
    """Though its message was not received."""
    async with replicas(server) as (first, _):
        server.run("CLIENT", "KILL", "TYPE", "pubsub")
        await first.cache.purge(Purge(queries=(QUERY,)))
        server.run("DEL", "idv:generation", "idv:purge:1")
        await first.wait_for(Purge())


async def test_nothing_is_read_while_messages_are_not_received(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new primary may have counted another purge instead of one that it lost."""
    async with replicas(server) as (first, _):
        await first.find()
        monkeypatch.setattr(RedisSharedCache, "interval", 0.3)
        server.run("CLIENT", "KILL", "TYPE", "pubsub")
        for is_read in (False, True):
            await until(lambda is_read=is_read: first.cache._is_following is is_read)
            assert ((await first.cache.get("", QUERY)).answer is not None) is is_read


async def test_a_lookup_begins_in_the_generation_that_is_known(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The present one may be lost, and then count another purge."""
    monkeypatch.setattr(RedisSharedCache, "interval", 60.0)
    async with replicas(server) as (first, _):
        server.run("INCR", "idv:generation")
        assert await first.cache.get("", QUERY) == SharedResult(0)


async def test_purges_are_received_again_after_a_message_that_cannot_be_read(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with replicas(server) as (first, second):
        message = Sealer(first.cache.options.secret).seal("idv:purges", [1, True])
        server.run("PUBLISH", "idv:purges", message)
        await until(lambda: "are not received: ValueError; trying again" in caplog.text)
        purge = Purge(queries=(QUERY,))
        await first.cache.purge(purge)
        await second.wait_for(purge)


@pytest.mark.parametrize("value", ["x", "9223372036854775807"])
async def test_purges_are_received_again_after_a_generation_that_cannot_be(
    server: RedisServer, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    async with replicas(server) as (first, _):
        server.run("SET", "idv:generation", value)
        await until(lambda: "idv:generation is not a generation" in caplog.text)
        server.run("SET", "idv:generation", "1")
        await first.wait_for(Purge())

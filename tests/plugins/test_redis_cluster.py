"""The Redis backend in front of a Redis Cluster, of which a node or a slot may lose its users."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, SlotNotCoveredError

from idv_redis.backend import RedisBackend
from support.databases.redis_cluster import RedisCluster, running_cluster
from support.databases.redis_server import RedisServer, running_server
from support.fakes.outcomes import outcome
from tornado_idv import ByCard, ByNickname, Query, StartError, User
from tornado_idv.kit.testing import make_backend
from tornado_idv.registry import opened_backend

pytestmark = pytest.mark.slow

USERS = [User("Free", f"40001234{index:08}", f"user{index}") for index in range(12)]
STRANGERS = [ByNickname(f"stranger{index}") for index in range(12)]
SLOT = str(key_slot(b"user:user0"))
MOVING = "unavailable: the cluster is moving the key to another node"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with running_cluster() as cluster:
        cluster.mark()
        yield cluster


@pytest.fixture(autouse=True)
def users(cluster: RedisCluster) -> None:
    cluster.load(*USERS)


def backend_of(cluster: RedisCluster, **options: Any) -> Any:
    given = {"url": cluster.url, "cluster": "true", "timeout": "5s", **options}
    return make_backend(RedisBackend, Path(), **given)


async def test_users_of_every_node_are_found(cluster: RedisCluster) -> None:
    """With the documented rights; a nickname with braces is in the slot that these select."""
    braced = User("Pro", "0012345670", "a{user1}", "https://elsewhere.example/a")
    cluster.load(*USERS, braced)
    queries = [ByNickname(user.nickname) for user in USERS]
    assert len({cluster.of(f"user:{query.nickname}").port for query in queries}) == 3
    async with opened_backend(backend_of(cluster)) as backend:
        found = await asyncio.gather(*map(backend.find, queries))
        assert found == USERS
        cards = [ByCard(user.card_number) for user in USERS]
        assert await asyncio.gather(*map(backend.find, cards)) == USERS
        assert await backend.find(ByNickname("a{user1}")) == braced
        unknown = [*STRANGERS, ByCard("77"), ByCard("78"), ByNickname("b{user1}")]
        assert {*await asyncio.gather(*map(backend.find, unknown))} == {None}


def layout_reads(cluster: RedisCluster, without: RedisServer) -> int:
    """Return how often clients have read the layout of the cluster from the other nodes."""
    stats = b"".join(
        each.run("INFO", "commandstats") for each in cluster.nodes if each is not without
    )
    return sum(map(int, re.findall(rb"cmdstat_cluster\|slots:calls=(\d+)", stats)))


async def test_the_users_of_a_node_without_its_data_are_unavailable(cluster: RedisCluster) -> None:
    """What other nodes have is found as always, and without delay."""
    lost = cluster.nodes[1]
    queries = [*(ByNickname(user.nickname) for user in USERS), *STRANGERS]
    right = ["found"] * len(USERS) + ["not found"] * len(STRANGERS)
    is_lost = [cluster.of(f"user:{query.nickname}") is lost for query in queries]
    without = [
        "unavailable" if lost else result for lost, result in zip(is_lost, right, strict=True)
    ]
    async with opened_backend(backend_of(cluster)) as backend:

        async def results(*queries: Query) -> list[str]:
            return [(await outcome(backend, query)).partition(":")[0] for query in queries]

        assert await results(*queries) == right
        lost.stop()
        assert await results(*queries) == without
        before = layout_reads(cluster, lost)
        assert {*await results(*[queries[is_lost.index(True)]] * 50)} == {"unavailable"}
        assert layout_reads(cluster, lost) - before < 10  # not after each failure
        cluster.restart(lost)
        assert await results(*queries) == without
        async with opened_backend(backend_of(cluster)) as other:
            problem = f"node 127.0.0.1:{lost.port}: the key ready:{{…}} is missing, "
            assert str(other.problem).startswith(problem)
        orphan = next(
            ByCard(user.card_number)
            for user in USERS
            if cluster.of(f"user:{user.nickname}") is lost
            and cluster.of(f"card:{user.card_number}") is not lost
        )
        assert await results(orphan) == ["unavailable"]  # its record is not wrong
        cluster.load(*USERS)
        assert await results(*queries) == right[: len(USERS)] + without[len(USERS) :]
        cluster.mark(lost)
        assert await results(*queries) == right


async def test_a_node_that_hangs_is_noticed_within_the_timeout(cluster: RedisCluster) -> None:
    """Otherwise the client would not learn which replica was promoted."""
    node = cluster.of("user:user0")
    async with opened_backend(backend_of(cluster, timeout="3s")) as backend:
        node.pause()
        try:
            hangs = "unavailable: the server did not respond in time"
            assert await outcome(backend, ByNickname("user0")) == hangs
            again = [backend.find(ByNickname("user0")) for _ in range(8)]
            failures = await asyncio.gather(*again, return_exceptions=True)  # callers change them
            assert len({id(each) for each in failures if str(each) in hangs}) == 8
            assert await outcome(backend, ByNickname("user1")) == "found"
        finally:
            node.resume()


async def test_users_are_found_while_their_slot_is_moved(cluster: RedisCluster) -> None:
    """While some keys are on one node and some on another, none is "not found"."""
    old, new, third = (cluster.of(f"user:user{each}") for each in (0, 1, 2))
    stranger = ByNickname("x{user:user0}")  # in the same slot
    with cluster.kept_slot("user:user0"):
        async with opened_backend(backend_of(cluster)) as backend:
            assert await outcome(backend, stranger) == "not found"
            new.run("CLUSTER", "SETSLOT", SLOT, "IMPORTING", cluster.id_of(old))
            old.run("CLUSTER", "SETSLOT", SLOT, "MIGRATING", cluster.id_of(new))
            assert await outcome(backend, ByNickname("user0")) == "found"
            marker, user = sorted(cluster.keys_beside("user:user0"))
            for key in (user, marker):
                old.run("MIGRATE", "127.0.0.1", str(new.port), key, "0", "1000")
                assert await outcome(backend, ByNickname("user0")) == "found"
                assert await outcome(backend, stranger) == MOVING
            cluster.assign("user:user0", new)
            assert await outcome(backend, ByNickname("user0")) == "found"
            assert "slot move" in await outcome(backend, stranger)
            cluster.mark(new)
            assert await outcome(backend, stranger) == "not found"
            # As by ``redis-cli --cluster fix``: this node never had the keys.
            cluster.assign("user:user0", third)
            lost = await outcome(backend, ByNickname("user0"))
            missing = "the key ready:{…} is missing"
            assert lost.startswith(f"unavailable: node 127.0.0.1:{third.port}: {missing}")
            assert await outcome(backend, ByNickname("user1")) == "found"


async def test_a_node_that_may_evict_users_stops_the_start(cluster: RedisCluster) -> None:
    node = cluster.nodes[2]
    node.run("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(StartError, match=f"the node 127.0.0.1:{node.port} evicts keys when"):
            await backend_of(cluster).open()
    finally:
        node.run("CONFIG", "SET", "maxmemory-policy", "noeviction")


async def test_a_user_who_is_loaded_during_a_lookup_is_found(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user was not there before the script, which finds the key."""
    async with opened_backend(backend_of(cluster)) as backend:
        execute = backend._client.execute  # noqa: SLF001 - a server that is scripted

        async def load(*command: str | bytes | int) -> Any:
            if command[0] == "EVAL":
                cluster.load(User("Free", "4000", "late"))
            return await execute(*command)

        monkeypatch.setattr(backend._client, "execute", load)  # noqa: SLF001 - a server that is scripted
        unnamed = Mock(side_effect=SlotNotCoveredError)  # as while the layout is read again
        monkeypatch.setattr("redis.asyncio.RedisCluster.get_node_from_key", unnamed)
        assert await outcome(backend, ByNickname("late")) == "found"
        down = Mock(side_effect=ClusterDownError("Hash slot not served"))
        monkeypatch.setattr("redis.asyncio.RedisCluster.execute_command", down)
        assert await outcome(backend, ByNickname("late")) == "unavailable: the cluster is down"


async def test_a_server_that_is_no_node_is_unavailable(
    cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "the cluster cannot be reached, or url is not one of its nodes"
    with running_server() as server:
        async with opened_backend(backend_of(cluster, url=server.url)) as backend:
            assert reason in caplog.text
            assert await outcome(backend) == f"unavailable: {reason}"
    # Another node could lose its users, while ``ready`` is on this one.
    node = make_backend(RedisBackend, Path(), url=cluster.of("ready").url)
    refused = "the server is a node of a Redis Cluster; use a single server"
    with pytest.raises(StartError, match=refused):
        await node.open()
    assert (await outcome(node)).startswith(f"broken: {refused}")
    await node.close()

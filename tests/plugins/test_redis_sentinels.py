"""A real failover by Sentinels, during which the primary of before still responds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from idv_redis.backend import RedisBackend
from support.databases.redis_partitions import SERVICE, running_group
from support.databases.redis_server import ALICE
from support.fakes.outcomes import outcome
from tornado_idv.kit.testing import make_backend
from tornado_idv.registry import open_backends

pytestmark = pytest.mark.slow


async def test_no_lookup_fails_by_a_failover_on_request_but_those_under_way() -> None:
    """The primary of before responds until it is a replica, which is later."""
    async with running_group() as group:
        for each in group.sentinels:
            each.server.run("SENTINEL", "DEBUG", "info-period", "10000")
        await asyncio.to_thread(group.primary.server.write, ALICE)
        await asyncio.to_thread(group.synchronise)
        servers = {"url": "redis://members/0", "sentinels": group.urls, "service": SERVICE}
        backend = make_backend(RedisBackend, Path(), **servers, timeout="5s")
        promoted = [(f"127.0.0.1:{group.replica.relay.port}", "primary")]
        async with open_backends([backend]), asyncio.timeout(60):
            failing_over = asyncio.create_task(asyncio.to_thread(group.fail_over))
            ended = []
            while backend.servers != promoted:
                ended += await asyncio.gather(*(outcome(backend) for _ in range(4)))
            ended += [await outcome(backend) for _ in range(100)]
            await failing_over
    assert {each for each in ended if each != "found"} <= {
        "unavailable: another server has become the primary",
        "unavailable: the server cannot be reached, or closed the connection",
    }
    assert ended.count("found") > len(ended) - 16

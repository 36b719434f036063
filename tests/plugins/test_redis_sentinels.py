"""A failover is followed while the primary of before still responds."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from idv_redis.backend import RedisBackend
from support.databases.redis_sentinels import Watched, until_true, watched
from support.databases.redis_server import ALICE, BOB, RedisServer, running_sentinel
from support.fakes.outcomes import outcome
from tornado_idv import ByNickname, User
from tornado_idv.kit.testing import make_backend
from tornado_idv.registry import open_backends

pytestmark = pytest.mark.slow

UNREACHED = "unavailable: the server cannot be reached, or closed the connection"
CAROL = User("Free", "77", "carol")


@asynccontextmanager
async def opened(group: Watched, folder: Path, **options: Any) -> AsyncIterator[RedisBackend]:
    backend = make_backend(RedisBackend, folder, **{**group.options, "timeout": "5s", **options})
    async with open_backends([backend]) as (each,):
        assert isinstance(each, RedisBackend)
        yield each


async def is_right(backend: RedisBackend) -> bool:
    """Return whether carol is found, who was added on the new primary, and bob is not."""
    ended = [await outcome(backend, ByNickname(name)) for name in ("carol", "bob")]
    return ended == ["found", "not found"]


def change(server: RedisServer) -> None:
    server.run("DEL", "user:bob", f"card:{BOB.card_number}")
    server.add(CAROL)
    server.run("SET", "ready", server.run_id)


async def test_of_two_primaries_the_one_that_most_sentinels_name_is_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also by a process that connects later, and where another Sentinel hangs or was cut off."""
    caplog.set_level(logging.INFO)
    with watched(ALICE, BOB, sentinels=3) as group, ExitStack() as stack:
        hanging = stack.enter_context(socket.create_server(("127.0.0.1", 0)))  # accepts nothing
        async with opened(group, tmp_path) as backend:
            assert await outcome(backend, ByNickname("carol")) == "not found"
            group.cut_off()
            await group.promoted()
            change(group.replica)
            await until_true(lambda: is_right(backend))
            group.primary.run("ACL", "SETUSER", "default", "-subscribe", "-publish")
            lonely = stack.enter_context(running_sentinel(group.primary, "members", quorum=9))
            urls = [
                f"redis://127.0.0.1:{hanging.getsockname()[1]}",
                lonely.url,
                *group.options["sentinels"],
            ]
            async with opened(group, tmp_path, sentinels=urls) as later:
                for _ in range(60):
                    assert await is_right(later)
                    assert await is_right(backend)
                    await asyncio.sleep(0.02)
            assert b"role:master" in group.primary.run("INFO", "replication")
            assert f"the primary of members is now {group.address}" in caplog.text
            assert backend.servers == [(group.address, "primary")]


async def test_no_lookup_fails_by_a_failover_on_request_but_those_under_way(tmp_path: Path) -> None:
    """The primary of before responds until it is a replica, which is later."""
    with watched(ALICE, sentinels=3, info_period=10_000) as group:
        async with opened(group, tmp_path) as backend:
            failing_over = asyncio.create_task(group.fail_over())
            ended = []
            until = time.monotonic() + 12
            while time.monotonic() < until and backend.servers != [(group.address, "primary")]:
                ended += await asyncio.gather(*(outcome(backend) for _ in range(4)))
            ended += [await outcome(backend) for _ in range(100)]
            await failing_over
            failed = {each for each in ended if each != "found"}
            assert failed <= {"unavailable: another server has become the primary", UNREACHED}
            assert ended.count("found") > len(ended) - 16
            assert backend.servers == [(group.address, "primary")]


async def test_no_server_is_asked_that_is_a_primary_no_more(tmp_path: Path) -> None:
    with watched(ALICE) as group:
        async with opened(group, tmp_path) as backend:
            assert await outcome(backend, ByNickname("carol")) == "not found"
            for sentinel in group.sentinels:
                sentinel.stop()
            group.primary.run("REPLICAOF", "127.0.0.1", str(group.replica.port))
            assert await outcome(backend, ByNickname("carol")) == (
                "unavailable: the server is a replica and may lack users"
            )
            group.primary.run("CLIENT", "KILL", "TYPE", "normal")
            await outcome(backend)  # by the connection of before
            assert await outcome(backend) == (
                "unavailable: the server is a replica, not the primary"
            )


async def test_ready_of_an_earlier_term_of_the_same_run_does_not_count(tmp_path: Path) -> None:
    """The primary was demoted meanwhile, and lacks what its successor wrote last."""
    with watched(ALICE) as group:
        first, second = group.primary, group.replica
        first.run("SET", "ready", first.run_id)
        async with opened(group, tmp_path) as backend:
            assert await outcome(backend, ByNickname("carol")) == "not found"
            for sentinel in group.sentinels:
                sentinel.stop()
            second.run("REPLICAOF", "NO", "ONE")
            first.run("REPLICAOF", "127.0.0.1", str(second.port))
            first.wait_for(b"master_link_status:up", "INFO", "replication")
            assert (await outcome(backend, ByNickname("carol"))).startswith("unavailable")
            second.run("ACL", "SETUSER", "default", "-psync", "-sync")
            second.run("CLIENT", "KILL", "TYPE", "replica")
            second.add(CAROL)
            first.run("REPLICAOF", "NO", "ONE")
            assert (await outcome(backend, ByNickname("carol"))).startswith("unavailable")
            first.run("DEL", "ready")
            assert "ready is missing" in await outcome(backend, ByNickname("carol"))
            first.run("SET", "ready", first.run_id)
            assert await outcome(backend, ByNickname("carol")) == "not found"

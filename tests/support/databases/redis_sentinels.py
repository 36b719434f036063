"""A primary with a replica, and the Sentinels that watch them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from support.databases.redis_server import RedisServer, running_sentinel, running_server
from tornado_idv import User

_PERIODS = ("ping-period", "100", "ask-period", "100", "publish-period", "200")
"""Milliseconds; by default 1 to 2 s, which a failover takes longer by."""
_OF_WATCHERS = ("-ping", "-psync", "-sync", "-replicaof", "-slaveof")
"""Rights to commands of Sentinels and replicas alone, without which they take a server for down."""


async def until_true(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + 30
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Watched:
    """Two servers, of which ``primary`` is the primary at first."""

    primary: RedisServer
    replica: RedisServer
    sentinels: tuple[RedisServer, ...]

    @property
    def options(self) -> dict[str, Any]:
        urls = [each.url for each in self.sentinels]
        return {"url": "redis://members/0", "sentinels": urls, "service": "members"}

    @property
    def address(self) -> str:
        """That of the primary after a failover."""
        return f"127.0.0.1:{self.replica.port}"

    def cut_off(self) -> None:
        """Separate the primary from the Sentinels and the replica, and from nothing else."""
        self.primary.run("ACL", "SETUSER", "default", *_OF_WATCHERS)
        self.primary.run("CLIENT", "KILL", "TYPE", "replica")
        self.primary.wait_for(b"connected_slaves:0", "INFO", "replication")

    async def promoted(self) -> None:
        """Wait until all Sentinels name the replica."""
        named = f"${len(str(self.replica.port))}\r\n{self.replica.port}\r\n".encode()
        for each in self.sentinels:
            ask = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "members")
            await asyncio.to_thread(each.wait_for, named, *ask)

    async def fail_over(self) -> None:
        self.sentinels[0].run("SENTINEL", "FAILOVER", "members")
        await self.promoted()


@contextmanager
def watched(*users: User, sentinels: int = 1, info_period: int = 200) -> Iterator[Watched]:
    """A primary with these users, its replica and Sentinels, all of which know of each other.

    The first Sentinel sees that the primary is down before the others do, so no vote is split.
    ``info_period`` is in milliseconds: how soon the primary of before is made a replica.
    """
    with ExitStack() as stack:
        at_once = ("--repl-diskless-sync-delay", "0")
        primary = stack.enter_context(running_server(*at_once))
        primary.write(*users)
        of_primary = ("--replicaof", "127.0.0.1", str(primary.port))
        replica = stack.enter_context(running_server(*of_primary, *at_once))
        replica.wait_for(b"master_link_status:up", "INFO", "replication")
        started = tuple(
            stack.enter_context(
                running_sentinel(
                    primary,
                    "members",
                    quorum=1,
                    down_after_milliseconds=600 + 600 * number,
                    failover_timeout=2000,
                )
            )
            for number in range(sentinels)
        )
        for sentinel in started:
            sentinel.run("SENTINEL", "DEBUG", "info-period", str(info_period), *_PERIODS)
            for name, number in {"num-slaves": 1, "num-other-sentinels": sentinels - 1}.items():
                reply = f"{name}\r\n$1\r\n{number}\r\n".encode()
                sentinel.wait_for(reply, "SENTINEL", "MASTER", "members")
        yield Watched(primary, replica, started)

"""Which server is taken for the primary, by what Sentinels respond."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from idv_redis import client as client_module
from idv_redis.client import Client
from idv_redis.options import RedisServer
from support.http.http_server import until
from tornado_idv import Unavailable

Said = tuple[int, str] | None
"""The epoch and the address that a Sentinel responds, ``None`` if it cannot be reached."""
HANGS = -1
OLD, NEW, OTHER = "10.0.0.1", "10.0.0.2", "10.0.0.3"
NAMED = f"name a primary of members; the current primary is {OLD}:6379"


class Played:
    """Two Sentinels, and servers that wait for ``gate``; ``connected`` are their URLs."""

    def __init__(self) -> None:
        self.said: list[Said] = []
        self.asked = 0
        self.connected: list[str] = []
        self.gate = asyncio.Event()
        self.closed = 0

    def from_url(self, url: str, **_: Any) -> PlayedServer:
        server = PlayedServer(self, int(url[-1]) if url.startswith("redis://s") else None)
        if server.place is None:
            self.connected.append(url)
        return server

    async def say(self, *said: Said) -> None:
        """Let the Sentinels respond so, and wait until that was read."""
        self.said, self.asked = [*said], 0
        await until(lambda: self.asked > 2 * len(said))


class PlayedServer:
    """The Sentinel in a ``place``, or else a server."""

    def __init__(self, played: Played, place: int | None) -> None:
        self.played, self.place = played, place

    async def sentinel_master(self, _: str) -> dict[str, Any]:
        self.played.asked += 1
        said = self.played.said[self.place or 0]
        if said is None:
            raise ConnectionError
        if said[0] == HANGS:
            await asyncio.Event().wait()
        return {"config-epoch": said[0], "ip": said[1], "port": 6379}

    async def execute_command(self, *_: str) -> str:
        await self.played.gate.wait()
        return "PONG"

    def set_response_callback(self, *_: object) -> None:
        pass

    async def aclose(self) -> None:
        if self.place is None:
            self.played.closed += 1
            raise ConnectionError


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played()
    monkeypatch.setattr(client_module, "Redis", played)
    monkeypatch.setattr(client_module, "_INTERVAL", 0.0)
    monkeypatch.setattr(client_module, "_PATIENCE", 0.01)
    return played


@asynccontextmanager
async def following(played: Played, *said: Said, url: str = "redis://h") -> AsyncIterator[Client]:
    played.said = [*said]
    played.gate.set()
    options = {"url": url, "sentinels": ["redis://s/0", "redis://s/1"], "service": "members"}
    client = Client(RedisServer.model_validate(options), timeout=5.0)
    try:
        await client.execute("PING")
        yield client
    finally:
        with suppress(ConnectionError):
            await client.close()


FOLLOWED: dict[str, tuple[list[tuple[Said, Said]], str]] = {
    "later failover": ([((1, OLD), (2, NEW))], NEW),
    "of the first": ([((2, NEW), (1, OLD))], NEW),
    "one responds": ([(None, (1, OLD))], OLD),
    "one hangs": ([((HANGS, OLD), (1, NEW))], NEW),
    "failover": ([((1, OLD), (1, OLD)), ((2, NEW), (1, OLD))], NEW),
    "only one that was cut off": ([((2, NEW), (2, NEW)), ((1, OLD), None)], NEW),
    "no response": ([((2, NEW), (2, NEW)), (None, None)], NEW),
    "two names for one failover": ([((2, NEW), (2, NEW)), ((2, NEW), (2, OTHER))], NEW),
    "is being removed": ([((5, OLD), (5, OLD)), ((0, NEW), (5, OLD))], OLD),
    "was added again": ([((5, OLD), (5, OLD)), ((0, NEW), (0, NEW))], NEW),
    "failover after that": ([((5, OLD), (5, OLD)), ((0, NEW), (1, OTHER))], OTHER),
}


@pytest.mark.parametrize(("rounds", "primary"), FOLLOWED.values(), ids=FOLLOWED)
async def test_primary_is_that_of_the_last_failover(
    played: Played, rounds: list[Iterable[Said]], primary: str
) -> None:
    async with following(played, *rounds[0]) as client:
        for said in rounds:
            await played.say(*said)
        assert client.primary == f"{primary}:6379"
        await client.execute("PING")
    assert played.connected[-1] == f"redis://{primary}:6379"


async def test_reply_of_a_server_that_is_the_primary_no_more_does_not_count(played: Played) -> None:
    async with following(played, (1, OLD), (1, OLD)) as client:
        played.gate.clear()
        running = asyncio.create_task(client.execute("PING"))
        await played.say((2, NEW), (2, NEW))
        played.gate.set()
        with pytest.raises(Unavailable, match="another server has become the primary") as caught:
            await running
        assert not caught.value.counts_against_breaker
        assert played.closed == 1
        await client.execute("PING")
        with suppress(ConnectionError):
            await client.close()  # as after a change of the password
        assert played.closed == 2
        await client.execute("PING")
        await played.say((3, OTHER), (3, OTHER))
        assert client.primary == f"{OTHER}:6379"


async def test_no_server_is_asked_before_a_sentinel_responds(played: Played) -> None:
    with pytest.raises(Unavailable, match="the server cannot be reached"):
        async with following(played, None, None):
            pass
    assert played.connected == []


async def test_lookups_go_on_while_no_sentinel_responds(
    played: Played, caplog: pytest.LogCaptureFixture
) -> None:
    """And neither that nor their return closes a connection."""
    caplog.set_level(logging.INFO)
    async with following(played, (1, OLD), (1, OLD)) as client:
        for said in ((None, None), ((1, OLD), (1, OLD))):
            await played.say(*said)
            await client.execute("PING")
    assert caplog.messages == [f"Redis: {each} of 2 Sentinels {NAMED}" for each in (0, 2)]
    assert len(played.connected) == 1


@pytest.mark.parametrize(
    ("url", "host", "connected"),
    [
        ("redis://members/3", OLD, f"redis://{OLD}:6379/3"),
        ("rediss://idv:p%40w@members", OLD, f"rediss://idv:p%40w@{OLD}:6379"),
        ("redis://:pw@members:1/0?a=b", "::1", "redis://:pw@[::1]:6379/0?a=b"),
        ("unix://:pw@/run/redis.sock", OLD, f"redis://:pw@{OLD}:6379/run/redis.sock"),
    ],
)
async def test_url_gives_all_but_the_address(
    played: Played, url: str, host: str, connected: str
) -> None:
    async with following(played, (1, host), None, url=url):
        assert played.connected == [connected]

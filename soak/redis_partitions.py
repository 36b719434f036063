"""A Redis primary, its replica and three Sentinels, between which a partition can be made."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from support.databases.redis_server import RedisServer
from support.http.tcp_relay import Relay, relaying

SERVICE = "users"
_PERIODS = {"info": 200, "ping": 400, "ask": 100, "publish": 500}
"""Milliseconds; by default up to 10 s, after which a failover would take longer than a fault.

While the primary is down, a Sentinel asks a replica for its state once a second, and promotes it
only if the state is younger than five ping periods: these must last clearly longer than a second.
"""
_OTHERS = ("min-link-reconnect-period", "500", "election-timeout", "1000", "tilt-trigger", "60000")
_HEAD = """\
bind-source-addr {address}
sentinel announce-ip 127.0.0.1
sentinel announce-port {port}
sentinel monitor {service} 127.0.0.1 {primary} 2
sentinel down-after-milliseconds {service} 500
sentinel failover-timeout {service} 1500
"""


@dataclass(frozen=True)
class Node:
    """A Redis server or a Sentinel; others reach it by its relay, and know it by its address."""

    server: RedisServer
    relay: Relay
    address: str


class SentinelGroup:
    """The nodes; ``primary`` is the one that the Sentinels name, ``replica`` the other one.

    Clients from 127.0.0.1 are on no side of a partition, and reach every node.
    """

    def __init__(self, primary: Node, replica: Node, sentinels: Sequence[Node]) -> None:
        self.primary, self.replica, self.sentinels = primary, replica, sentinels

    @property
    def urls(self) -> list[str]:
        return [f"redis://127.0.0.1:{each.relay.port}" for each in self.sentinels]

    def split(self, *side: Node) -> None:
        nodes = (self.primary, self.replica, *self.sentinels)
        for node in nodes:
            node.relay.bar({each.address for each in nodes if (each in side) != (node in side)})

    def cut_replication(self) -> None:
        self.primary.relay.bar({self.replica.address})

    def heal(self) -> None:
        self.split()

    def synchronise(self) -> None:
        done, wanted = b"", self.primary.server
        deadline = time.monotonic() + 10
        while done != (offset := _replication(wanted)["master_repl_offset"]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
            done = _replication(self.replica.server).get("slave_repl_offset", b"")
            if done and int(done) >= int(offset):
                return

    def wait_for_failover(self) -> None:
        """Wait until the last two Sentinels, which are a majority, name the replica."""
        named = f"${len(str(self.replica.relay.port))}\r\n{self.replica.relay.port}\r\n".encode()
        for sentinel in self.sentinels[1:]:
            ask = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
            sentinel.server.wait_for(named, *ask)
        self.primary, self.replica = self.replica, self.primary

    def wait_for_replica(self) -> None:
        """Wait until the Sentinels have made a replica of the other server, and may promote it."""
        self.replica.server.wait_for(b"master_link_status:up", "INFO", "replication")
        self.synchronise()
        ask = ("SENTINEL", "REPLICAS", SERVICE)
        for sentinel in self.sentinels:
            sentinel.server.wait_for(b"flags\r\n$5\r\nslave\r\n", *ask)
            sentinel.server.wait_for(b"master-link-status\r\n$2\r\nok\r\n", *ask)

    def fail_over(self) -> None:
        self.sentinels[2].server.wait_for(b"+OK", "SENTINEL", "FAILOVER", SERVICE)
        self.wait_for_failover()

    def start_sentinels(self) -> None:
        for each in self.sentinels:
            if each.server.process is None:
                each.server.start()
            periods = [
                str(part) for name, ms in _PERIODS.items() for part in (f"{name}-period", ms)
            ]
            each.server.run("SENTINEL", "DEBUG", *periods, *_OTHERS)


def _replication(server: RedisServer) -> dict[str, bytes]:
    lines = server.run("INFO", "replication").splitlines()
    fields = (line.partition(b":") for line in lines)
    return {name.decode(): value for name, _, value in fields}


@asynccontextmanager
async def running_group() -> AsyncIterator[SentinelGroup]:
    async with AsyncExitStack() as stack:

        async def node(number: int, *options: str) -> Node:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="idv-redis-")))
            server = RedisServer(folder, options)
            stack.callback(server.stop)
            relay = await stack.enter_async_context(relaying(server.port))
            return Node(server, relay, f"127.0.0.{number}")

        servers = []
        for number in (11, 12):
            each = await node(number)
            each.server.options = (
                *("--appendonly", "yes", "--appendfsync", "no", "--save", ""),
                *("--repl-diskless-sync-delay", "0", "--bind-source-addr", each.address),
                *("--replica-announce-ip", "127.0.0.1"),
                *("--replica-announce-port", str(each.relay.port)),
            )
            await asyncio.to_thread(each.server.start)
            servers.append(each)
        primary, replica = servers
        await asyncio.to_thread(
            replica.server.run, "REPLICAOF", "127.0.0.1", str(primary.relay.port)
        )
        sentinels = [await node(number) for number in (21, 22, 23)]
        for each in sentinels:
            config = each.server.folder / "sentinel.conf"
            values = {"address": each.address, "port": each.relay.port, "service": SERVICE}
            config.write_text(_HEAD.format(primary=primary.relay.port, **values))
            each.server.options = (str(config), "--sentinel")
        group = SentinelGroup(primary, replica, sentinels)
        await asyncio.to_thread(group.start_sentinels)
        for each in sentinels:
            others = b"num-other-sentinels\r\n$1\r\n2"
            await asyncio.to_thread(each.server.wait_for, others, "SENTINEL", "MASTER", SERVICE)
        await asyncio.to_thread(group.wait_for_replica)
        yield group

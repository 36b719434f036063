"""A real Redis Cluster of three primaries, which a test loads, restarts and moves slots in."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from redis.crc import key_slot

from support.databases.redis_server import PASSWORD, RedisServer, commands_of, running_server
from support.processes.ports import free_port
from tornado_idv import User

_README = Path(__file__).parents[3] / "plugins/idv_redis/README.md"
_RANGES = ((0, 5460), (5461, 10922), (10923, 16383))
_OPTIONS = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
_OPTIONS += ("--cluster-node-timeout", "15000")


class RedisCluster:
    """The nodes by the order of their slots, with a user who has the documented rights."""

    def __init__(self, nodes: list[RedisServer]) -> None:
        self.nodes = nodes
        readme = _README.read_text()
        (script,) = re.findall(r"```lua\n(.*?)```", readme, re.DOTALL)
        (rights,) = re.findall(r"^ACL SETUSER idv on .*cluster.*$", readme, re.MULTILINE)
        self._script = script
        self._rights = rights.replace("LONG-RANDOM-TEXT", PASSWORD)
        self._keys: list[str] = []

    @property
    def url(self) -> str:
        return self.nodes[0].url.replace("//", f"//idv:{PASSWORD}@")

    def create(self) -> None:
        """Give the nodes their slots, and wait until each accepts commands."""
        for node, (first, last) in zip(self.nodes, _RANGES, strict=True):
            node.run("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
            node.run("CLUSTER", "SET-CONFIG-EPOCH", str(first + 1))
            _introduce(self.nodes[0], node)
            node.run(*self._rights.split())
        for node in self.nodes:
            node.wait_for(b"cluster_known_nodes:3", "CLUSTER", "INFO")
            node.wait_for(b"cluster_state:ok", "CLUSTER", "INFO")

    def of(self, key: str) -> RedisServer:
        """Return the node that got the slot of this key first."""
        slot = key_slot(key.encode())
        return self.nodes[next(i for i, (_, last) in enumerate(_RANGES) if slot <= last)]

    def restart(self, node: RedisServer) -> None:
        """Start a node that was stopped; it has no keys."""
        node.start()
        node.run(*self._rights.split())
        node.wait_for(b"cluster_state:ok", "CLUSTER", "INFO")

    def id_of(self, node: RedisServer) -> str:
        return node.run("CLUSTER", "MYID").split()[1].decode()

    def assign(self, key: str, node: RedisServer) -> None:
        """Give the slot of a key to a node without its keys, and wait until all nodes know."""
        slot = str(key_slot(key.encode()))
        others = [each for each in self.nodes if each is not node]
        self.raise_epoch(node)
        for each in (node, *others):
            each.run("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(node))
        for each in others:
            each.wait_for(f"MOVED {slot} 127.0.0.1:{node.port}".encode(), "GET", key)

    @contextmanager
    def kept_slot(self, key: str) -> Iterator[None]:
        """Give the slot of a key, with its marker, back to its node, whatever is done within."""
        try:
            yield
        finally:
            self.assign(key, self.of(key))
            self.mark(self.of(key))

    def raise_epoch(self, node: RedisServer) -> None:
        """Give a node the highest epoch; otherwise others would claim its slot again.

        A node that has not received the highest one takes its own for it, and leaves it as it is.
        """
        highest = max(map(_current_epoch, self.nodes))
        for each in self.nodes:
            if each is not node:
                _introduce(each, node)
        node.wait_for(f"cluster_current_epoch:{highest}".encode(), "CLUSTER", "INFO")
        node.run("CLUSTER", "BUMPEPOCH")

    def load(self, *users: User) -> None:
        """Replace the users, and leave the markers as they are."""
        for key in self._keys:
            self.of(key).run("DEL", key)
        commands = [command for user in users for command in commands_of(user)]
        self._keys = [key for _, key, *_ in commands]
        for key, command in zip(self._keys, commands, strict=True):
            self.of(key).run(*command)

    def mark(self, *nodes: RedisServer, command: str = "SET") -> None:
        for node in nodes or self.nodes:
            assert int(node.run("EVAL", self._script, "0", "", command)[1:]) > 0

    def keys_beside(self, key: str) -> list[str]:
        reply = self.of(key).run("CLUSTER", "GETKEYSINSLOT", str(key_slot(key.encode())), "9")
        return reply.decode().split()[2::2]


def _introduce(node: RedisServer, other: RedisServer) -> None:
    """Make a node send another one what it knows, also where they know each other."""
    bus = other.options[other.options.index("--cluster-port") + 1]
    node.run("CLUSTER", "MEET", "127.0.0.1", str(other.port), bus)


def _current_epoch(node: RedisServer) -> int:
    (epoch,) = re.findall(rb"cluster_current_epoch:(\d+)", node.run("CLUSTER", "INFO"))
    return int(epoch)


@contextmanager
def running_cluster() -> Iterator[RedisCluster]:
    """A new cluster without users; a node that is restarted is empty."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(running_server(*_OPTIONS, "--cluster-port", str(free_port())))
            for _ in _RANGES
        ]
        cluster = RedisCluster(nodes)
        cluster.create()
        yield cluster

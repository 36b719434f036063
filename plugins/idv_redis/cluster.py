"""Users of a Redis Cluster that may have been lost: markers in each of its slots.

A node can lose its data alone, and a slot can be given to a node that never had its data: a restart
without persistence, a replica that copied an empty primary, ``redis-cli --cluster fix``. So each
slot has a marker key, which is lost, copied and moved with the users of the slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product

from redis.crc import key_slot

from idv_redis.cluster_client import ClusterClient
from idv_redis.options import RedisOptions
from tornado_idv import Broken, Unavailable

_READ = """
return {redis.call('EXISTS', KEYS[1]), redis.call('EXISTS', KEYS[2]), redis.call('INFO', ARGV[1])}
"""
"""One script, since the next command may reach another node. While a slot is moved, it is refused
unless both keys are on one node."""


class Cluster:
    """The marker keys of the slots, and what evicts users."""

    def __init__(self, options: RedisOptions) -> None:
        self.client = ClusterClient(options)
        self._prefix = options.prefix
        _tags()  # takes 20 ms, which no lookup should

    async def check(self) -> str | None:
        """Return why users may be missing, if they may.

        It looks at one slot of each range of slots. Raises `Broken` for a node that may evict them.
        """
        problem = None
        for first in await self.client.first_slots():
            marker = self._marker(first)
            info = (await self._read(marker, marker, "memory"))[2]
            if b"maxmemory_policy:noeviction" not in info:
                node = self.client.node_of(marker)
                raise Broken(
                    f"the node {node} evicts keys when its memory is full, and users may be among "
                    "them; set its maxmemory-policy to noeviction"
                )
            problem = problem or self._problem(await self._read(marker, marker, "stats"), marker)
        return problem

    async def has(self, key: str) -> bool:
        """Return whether this key exists; raises `Unavailable` where it may have been lost."""
        marker = self._marker(key_slot(key.encode()))
        reply = await self._read(key, marker, "stats")
        if reply[0]:
            return True
        problem = self._problem(reply, key)
        if problem is not None:
            raise Unavailable(problem, counts_against_breaker=False)
        return False

    async def _read(self, key: str, marker: str, section: str) -> tuple[int, int, bytes]:
        found, marked, info = await self.client.execute("EVAL", _READ, 2, key, marker, section)
        return found, marked, info

    def _problem(self, reply: tuple[int, int, bytes], key: str) -> str | None:
        _, marked, info = reply
        if not marked:
            problem = (
                f"has lost users, or they are not all loaded (no key {self._prefix}ready:{{…}})"
            )
        elif b"evicted_keys:0\r\n" not in info:
            problem = "has evicted keys, and users may be among them"
        else:
            return None
        return (
            f"the node {self.client.node_of(key)} {problem}; load all users again, see "
            "Cluster in the README of idv_redis; unknown users are answered 503 until then"
        )

    def _marker(self, slot: int) -> str:
        return f"{self._prefix}ready:{{{_tags()[slot]}}}"


@cache
def _tags() -> Mapping[int, str]:
    """Return a hash tag for each slot; CRC-16 is linear, so these tags have a slot each."""
    letters = "@ABCDEFGHIJKLMNO"
    tags = map("".join, product(letters[:4], letters, letters, letters))
    return {key_slot(tag.encode()): tag for tag in tags}

"""The client of a Redis Cluster, and the marker keys that detect lost users.

A single node can lose its data, by a restart without persistence, or as a replica of an empty
primary. ``redis-cli --cluster fix`` can assign a slot to a node without the slot's data. So each
slot has a marker key. Redis loses, copies and moves this key together with the slot's users.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any

from redis.asyncio import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, SlotNotCoveredError
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import TimeoutError as NoReply

from idv_redis.client import Client, parse_info, to_lookup_failed
from idv_redis.options import RedisOptions
from tornado_idv import Broken, LookupFailed

_OF_NODE = (NotConnected, NoReply, ClusterDownError, OSError)
_PAUSE = 1.0
"""Seconds for which a failed node gets no further commands. They fail with a copy of its failure.

Without a pause, redis-py would reload the layout after each failed command: 0.1 s of CPU time.
"""
_READ = """
local info = redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
info = info .. redis.call('INFO', ARGV[1])
return {redis.call('EXISTS', KEYS[1]), redis.call('GET', KEYS[2]) or '', info}
"""
"""Script that reads a user's key and the marker of its slot on one node.

Two commands could reach two nodes. Redis rejects the script if the keys are on different nodes.
"""
_NO_ID = "0" * 40
_RUN_ID = re.compile(rb"[0-9a-f]{40}")


class ClusterClient(Client):
    """A client of a cluster with a marker key in each slot. It detects nodes that lost users."""

    _in_cluster = True

    def __init__(self, options: RedisOptions) -> None:
        # After a timeout of one node, there is time left for another node.
        super().__init__(options, timeout=options.timeout / 3)
        self._prefix = options.prefix
        self._ready_keys = ReadyKeys()
        self._failed: dict[str, tuple[float, LookupFailed]] = {}
        _tags()  # takes 20 ms, which must not delay the first lookup

    async def execute(self, *command: str | bytes | int) -> Any:
        """Run ``EVAL``, or a command whose first argument is a key, on the node with its slot."""
        key = str(command[3] if command[0] == "EVAL" else command[1])

        async def run(cluster: Any) -> Any:
            node = self._node_of(key)
            failed = self._failed.get(node)
            if failed is not None and asyncio.get_running_loop().time() < failed[0]:
                raise failed[1].copy()
            try:
                return await cluster.execute_command(*command)
            except _OF_NODE as error:
                failure = to_lookup_failed(error, in_cluster=True)
                self._failed[node] = asyncio.get_running_loop().time() + _PAUSE, failure.copy()
                raise failure from None

        return await self._run(run)

    async def check(self) -> str | None:
        """Check one slot of each range. Return the reason why users may be missing, or ``None``.

        Raises `Broken` for a node that may evict users.
        """
        first_problem = None
        for first, _ in await super().execute("CLUSTER SLOTS"):
            marker = self._marker(first)
            _, info, problem = await self._read(marker, marker, "all")
            if b"maxmemory_policy:noeviction" not in info:
                node = self._node_of(marker)
                raise Broken(
                    f"the node {node} evicts keys when its memory is full, and users may be among "
                    "them; set its maxmemory-policy to noeviction"
                )
            first_problem = first_problem or problem
        return first_problem

    async def ask(self, key: str) -> tuple[bool, str | None]:
        """Return whether a key exists, and the reason why users may be lost, or ``None``."""
        found, _, problem = await self._read(key, self._marker(key_slot(key.encode())), "stats")
        return found, problem

    async def _read(self, key: str, marker: str, section: str) -> tuple[bool, bytes, str | None]:
        """Return whether the key exists, parts of INFO, and the problem found, or ``None``."""
        found, ready, info = await self.execute("EVAL", _READ, 2, key, marker, section)
        node = self._node_of(marker)
        return bool(found), info, self._ready_keys.problem(marker, ready, parse_info(info), node)

    def _marker(self, slot: int) -> str:
        return f"{self._prefix}ready:{{{_tags()[slot]}}}"

    def _node_of(self, key: str) -> str:
        """Return a node's name for messages: ``host:port``, or "of this slot" if it is unknown."""
        with suppress(SlotNotCoveredError):
            if isinstance(self._redis, RedisCluster):
                return str(self._redis.get_node_from_key(key).name)  # type: ignore[union-attr]
        return "of this slot"

    async def close(self) -> None:
        """Close every connection, including the connections for the layout of the cluster."""
        cluster = self._redis
        await super().close()
        if isinstance(cluster, RedisCluster):
            for nodes in ("nodes_cache", "startup_nodes"):
                await cluster.nodes_manager.aclose(nodes)

    def _make(self, url: str) -> RedisCluster:
        # With one retry, the first command after a failover finds the new primary.
        return RedisCluster.from_url(url, **{**self._settings, "retry": Retry(NoBackoff(), 1)})


class ReadyKeys:
    """Decides whether ``ready`` keys are valid, by the *terms* that this process has seen.

    A term is the time in which one run of a server is the primary. After a restart or a failover, a
    new term begins. The server may then have the key, but have lost the last users, so the value of
    the key decides. The ``run_id`` of another run is invalid. The ``run_id`` of this run is valid
    in the first term of the run. Any other text is valid in the first term that this process sees.
    In a later term, it is valid only if this process has found the key missing in this term,
    because the key was then set in this term. A node that was not there at the start is in a later
    term, because a promoted replica is such a node.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, int]] = {}
        self._missing: dict[str, tuple[str, int]] = {}
        self._terms: dict[str, tuple[str, int]] = {}

    def _term(self, info: Mapping[str, str]) -> tuple[str, int]:
        """Return the term of a server: its run id, and the number of promotions in this run."""
        # A promotion changes `master_replid2`.
        run_id, promoted_from = info["run_id"], info.get("master_replid2", _NO_ID)
        last, number = self._terms.get(run_id, (promoted_from, 0))
        if promoted_from not in (last, _NO_ID):  # cleared an hour after the loss of all replicas
            last, number = promoted_from, number + 1
        self._terms[run_id] = last, number
        return run_id, number

    def problem(
        self, key: str, value: bytes | None, info: Mapping[str, str], node: str = ""
    ) -> str | None:
        """Return the reason why a server may lack users, or ``None``.

        ``value`` is the value of the ready key ``key``. Evictions are detected by the number of
        evicted keys, because the ``maxmemory-policy`` may have changed, or differ on a replica.
        """
        run_id, number = term = self._term(info)
        if "maxmemory_policy" in info:  # only the check at the start reads this
            self._first.setdefault(node, term)
        is_known = term in (self._first.get(node), self._missing.get(key))
        is_of_run = value == run_id.encode()
        name = re.sub(r":\{.{4}\}$", ":{…}", key)  # the tag would show a hash of the user
        until = "unknown users get 503 until"
        events = "restart, failover or slot move" if node else "restart or failover"
        if info.get("evicted_keys") != "0":
            problem = (
                "the server has evicted keys, and users may be among them; set maxmemory-policy to "
                f"noeviction, load all users again and run CONFIG RESETSTAT; {until} then"
            )
        elif not value:
            self._missing[key] = term
            problem = f"the key {name} is missing, so not all users are loaded; {until} it is set"
        elif (is_known or number == 0) if is_of_run else is_known and not _RUN_ID.fullmatch(value):
            return None
        else:
            problem = (
                f"the key {name} is older than the last {events}, and the last users may be lost; "
                f"delete it, load all users, and set it to the run_id of the server; {until} then"
            )
        return f"node {node}: {problem}" if node else problem


@cache
def _tags() -> Mapping[int, str]:
    """Return a hash tag for each slot. CRC-16 is linear, so no two of these tags share a slot."""
    letters = "@ABCDEFGHIJKLMNO"
    tags = map("".join, product(letters[:4], letters, letters, letters))
    return {key_slot(tag.encode()): tag for tag in tags}

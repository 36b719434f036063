"""Commands to the nodes of a Redis Cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ClusterDownError, SlotNotCoveredError
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import TimeoutError as NoReply

from idv_redis.client import Client
from idv_redis.errors import to_lookup_failed
from idv_redis.options import RedisOptions
from tornado_idv import LookupFailed

_OF_NODE = (NotConnected, NoReply, ClusterDownError, OSError)
_PAUSE = 1.0
"""Seconds for which a node that failed gets no commands: after each failure redis-py reads the
layout and the commands of the cluster, which takes 0.1 s of CPU time."""


class ClusterClient(Client):
    """Runs each command at the node that has the slot of its key."""

    def __init__(self, options: RedisOptions) -> None:
        # So that a node which hangs is noticed, and its successor asked, within the timeout.
        super().__init__(options, timeout=options.timeout / 3)
        self._failed: dict[str, tuple[float, LookupFailed]] = {}

    async def execute(self, *command: str | bytes | int) -> Any:
        """Run ``EVAL``, or a command whose first argument is a key; raises `LookupFailed`."""
        key = str(command[3] if command[0] == "EVAL" else command[1])
        async with self._slots:
            node = ""
            try:
                cluster: Any = await self._connected()
                node = self.node_of(key)
                self._check_node(node)
                return await cluster.execute_command(*command)
            except Exception as error:  # noqa: BLE001 - each is mapped
                failure = to_lookup_failed(error, in_cluster=True)
                # If the slot has another node by now, either of the two may have failed.
                if isinstance(error, _OF_NODE) and node == self.node_of(key):
                    until = asyncio.get_running_loop().time() + _PAUSE
                    self._failed[node] = until, failure.copy()
                raise failure from None

    async def first_slots(self) -> Sequence[int]:
        """Return the first slot of each range of slots; raises `LookupFailed`."""
        try:
            cluster: Any = await self._connected()
            return [first for first, _ in await cluster.execute_command("CLUSTER SLOTS")]
        except Exception as error:  # noqa: BLE001 - each is mapped
            raise to_lookup_failed(error, in_cluster=True) from None

    def node_of(self, key: str) -> str:
        """Return host and port of the node that has the slot of this key, if that is known."""
        try:
            if isinstance(self._redis, RedisCluster):
                return str(self._redis.get_node_from_key(key).name)  # type: ignore[union-attr]
        except SlotNotCoveredError:
            pass
        return "of this slot"

    def _check_node(self, node: str) -> None:
        """Raise the failure of the node again, if it is that recent."""
        failed = self._failed.get(node)
        if failed is not None and asyncio.get_running_loop().time() < failed[0]:
            raise failed[1].copy()

    async def close(self) -> None:
        """Close every connection, also those that redis-py keeps when it is to read the layout."""
        cluster = self._redis
        await super().close()
        if isinstance(cluster, RedisCluster):
            for nodes in ("nodes_cache", "startup_nodes"):
                await cluster.nodes_manager.aclose(nodes)

    def _make(self, url: str) -> RedisCluster:
        # One attempt more: the first command after a failover finds the new primary.
        return RedisCluster.from_url(url, **{**self._settings, "retry": Retry(NoBackoff(), 1)})

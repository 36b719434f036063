"""Commands to one server, or to the primary behind Sentinels.

With `cluster`, the only module that knows redis-py's clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from idv_redis.errors import to_lookup_failed
from idv_redis.options import RedisServer, check_url


class Client:
    """Runs commands, ``pool_size`` at once; further ones wait. It connects when it must.

    ``timeout`` bounds an attempt to connect and a response, in seconds.
    """

    def __init__(self, server: RedisServer, *, timeout: float) -> None:
        self._server = server
        self._settings: dict[str, Any] = {
            # With RESP 3 redis-py uses idle connections on which something was received.
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": timeout,
            "socket_timeout": timeout,
        }
        self._slots = asyncio.Semaphore(server.pool_size)
        self._url = ""
        self._redis: Redis | RedisCluster | None = None
        self._sentinels: Sequence[Redis] = ()

    async def execute(self, *command: str | bytes | int) -> Any:
        """Run one command and return its reply; raises `LookupFailed`."""
        async with self._slots:
            try:
                redis: Any = await self._connected()
                return await redis.execute_command(*command)
            except Exception as error:  # noqa: BLE001 - each is mapped
                raise to_lookup_failed(error) from None

    async def execute_all(self, *commands: tuple[str, ...]) -> list[Any]:
        """Run commands one after the other over one connection; raises as `execute` does."""
        async with self._slots:
            try:
                redis: Any = await self._connected()
                async with redis.pipeline(transaction=False) as pipeline:
                    for command in commands:
                        pipeline.execute_command(*command)
                    return list(await pipeline.execute())
            except Exception as error:  # noqa: BLE001 - each is mapped
                raise to_lookup_failed(error) from None

    async def messages(self, channel: str, *, interval: float) -> AsyncGenerator[bytes | None]:
        """Yield each message, ``None`` at first and when none came for ``interval`` seconds.

        What is published after the first ``None`` is received. Raises `LookupFailed` when the
        connection is lost.
        """
        try:
            redis: Any = await self._connected()
            async with redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                await pubsub.subscribe(channel)
                await pubsub.get_message(timeout=interval)  # that of the subscription
                yield None
                while True:
                    message = await pubsub.get_message(timeout=interval)
                    yield None if message is None else message["data"]
        except Exception as error:  # noqa: BLE001 - each is mapped
            raise to_lookup_failed(error) from None

    async def close(self) -> None:
        """Close every connection; the next command connects again."""
        redis, self._redis = self._redis, None
        if redis is not None:
            await asyncio.gather(*(each.aclose() for each in (redis, *self._sentinels)))

    async def _connected(self) -> Redis | RedisCluster:
        """Return the client for the URL, which may follow a file that has changed."""
        url = self._server.url.get_secret_value()
        if self._redis is None or url != self._url:
            check_url(self._server.url)
            await self.close()
            self._url, self._redis = url, self._make(url)
        return self._redis

    def _make(self, url: str) -> Redis | RedisCluster:
        server, settings = self._server, self._settings
        if not server.sentinels:
            return Redis.from_url(url, **settings)
        self._sentinels = [
            Redis.from_url(each.get_secret_value(), **settings) for each in server.sentinels
        ]
        sentinel: Any = Sentinel([])  # type: ignore[no-untyped-call]
        sentinel.sentinels = [*self._sentinels]
        pool = ConnectionPool.from_url(url, **settings)
        arguments = {
            name: value
            for name, value in pool.connection_kwargs.items()
            if name in _FOR_ANY_HOST or name in settings or name.startswith("ssl_")
        }
        primary: Redis = sentinel.master_for(
            server.service or "", ssl=url.startswith("rediss:"), **arguments
        )
        return primary


_FOR_ANY_HOST = {"db", "password", "username"}

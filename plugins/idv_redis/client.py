"""Commands to one server, or to the primary behind Sentinels.

With `cluster`, the only module that knows redis-py's clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import ReadOnlyError

from idv_redis.errors import to_lookup_failed
from idv_redis.options import RedisServer, check_url
from tornado_idv import Unavailable

_Reply = TypeVar("_Reply")
_log = logging.getLogger(__name__)
_INTERVAL = 1.0
"""Seconds between two questions to the Sentinels."""
_RESPONDING = "Redis: %d of %d Sentinels name the primary of %s, which is %s"
_PATIENCE = 0.25
"""Seconds to wait for a Sentinel while others have responded."""


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
        self._sentinels: Sequence[Any] = ()
        self._follower: asyncio.Task[None] | None = None
        self._have_asked = asyncio.Event()
        self._epoch, self.primary = -1, ""
        """What the Sentinels name: the epoch, and host and port of the primary."""

    async def execute(self, *command: str | bytes | int) -> Any:
        """Run one command and return its reply; raises `LookupFailed`."""
        return await self._run(lambda redis: redis.execute_command(*command))

    async def execute_all(self, *commands: tuple[str, ...]) -> list[Any]:
        """Run commands one after the other over one connection; raises as `execute` does."""

        async def run(redis: Any) -> list[Any]:
            async with redis.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return list(await pipeline.execute())

        return await self._run(run)

    async def _run(self, operation: Callable[[Any], Awaitable[_Reply]]) -> _Reply:
        primary = self.primary
        async with self._slots:
            try:
                redis = await self._connected()
                primary = self.primary
                reply = await operation(redis)
            except Exception as error:  # noqa: BLE001 - each is mapped
                self._check_primary(primary)
                raise to_lookup_failed(error) from None
            self._check_primary(primary)
            return reply

    def _check_primary(self, primary: str) -> None:
        """Raise `Unavailable` if another server has become the primary."""
        if self.primary != primary:
            raise Unavailable("another server has become the primary", counts_against_breaker=False)

    async def messages(self, channel: str, *, interval: float) -> AsyncGenerator[bytes | None]:
        """Yield each message, ``None`` at first and when none came for ``interval`` seconds.

        What is published after the first ``None`` is received. Raises `LookupFailed` when the
        connection is lost.
        """
        try:
            redis: Any = await self._connected()
            primary = self.primary
            async with redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                await pubsub.subscribe(channel)
                await pubsub.get_message(timeout=interval)  # that of the subscription
                yield None
                while True:
                    message = await pubsub.get_message(timeout=interval)
                    self._check_primary(primary)  # redis-py may have connected to that of before
                    yield None if message is None else message["data"]
        except Exception as error:  # noqa: BLE001 - each is mapped
            raise to_lookup_failed(error) from None

    async def close(self) -> None:
        """Close every connection; the next command connects again."""
        while self._follower is not None and not self._follower.done():
            self._follower.cancel()  # redis-py loses a cancellation now and then
            await asyncio.wait([self._follower], timeout=0.1)
        sentinels, self._sentinels, self._follower = self._sentinels, (), None
        await asyncio.gather(self._disconnect(), *(each.aclose() for each in sentinels))

    async def _disconnect(self) -> None:
        redis, self._redis = self._redis, None
        if redis is not None:
            await redis.aclose()

    async def _connected(self) -> Redis | RedisCluster:
        """Return the client for the URL, which may follow a file that has changed."""
        url = self._server.url.get_secret_value()
        if url != self._url:
            check_url(self._server.url)
            await self.close()
            self._url = url
        if self._server.sentinels:
            if self._follower is None:
                urls = [each.get_secret_value() for each in self._server.sentinels]
                self._sentinels = [Redis.from_url(each, **self._settings) for each in urls]
                self._follower = asyncio.create_task(self._follow())
            await self._have_asked.wait()
        if self._redis is None:
            self._redis = self._make(url)
        return self._redis

    def _make(self, url: str) -> Redis | RedisCluster:
        if not self._server.sentinels:
            return Redis.from_url(url, **self._settings)
        if not self.primary:
            raise NotConnected
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        scheme, address = parts.scheme.replace("unix", "redis"), f"{login}{at}{self.primary}"
        url = parts._replace(scheme=scheme, netloc=address).geturl()
        return Redis.from_url(url, redis_connect_func=_connect_to_primary, **self._settings)

    async def _follow(self) -> None:
        """Ask the Sentinels for the primary again and again; close connections to another one."""
        service, do_respond = self._server.service, True
        while True:
            named, before = await self._ask_all(), self.primary
            epoch, primary = max(named, default=(-1, ""))
            # Epochs begin again where the service is removed from all Sentinels, and added again.
            is_reset = len(named) == len(self._sentinels) and (self._epoch, before) not in named
            if epoch > self._epoch or is_reset:
                self._epoch, self.primary = epoch, primary
            if bool(named) is not do_respond:
                do_respond = bool(named)
                level, of = logging.INFO if named else logging.WARNING, len(self._sentinels)
                _log.log(level, _RESPONDING, len(named), of, service, self.primary or "not known")
            self._have_asked.set()
            if before not in ("", self.primary):
                _log.info("Redis: the primary of %s is now %s", service, self.primary)
                with suppress(Exception):
                    await self._disconnect()
            await asyncio.sleep(_INTERVAL)

    async def _ask_all(self) -> Sequence[tuple[int, str]]:
        """Return what the Sentinels name: the highest epoch is that of the last failover.

        One that is cut off from the others still names the primary of before.
        """
        named: list[tuple[int, str]] = []
        late = {asyncio.create_task(_ask(each, self._server.service)) for each in self._sentinels}
        try:
            while late and not named:
                done, late = await asyncio.wait(late, timeout=_PATIENCE)
                named = [each for task in done if (each := task.result()) is not None]
        finally:
            for task in late:
                task.cancel()
        return named


async def _ask(sentinel: Any, service: str | None) -> tuple[int, str] | None:
    try:
        state = await sentinel.sentinel_master(service)
    except Exception:  # noqa: BLE001 - others may respond
        return None
    host = f"[{state['ip']}]" if ":" in state["ip"] else state["ip"]
    return state["config-epoch"], f"{host}:{state['port']}"


async def _connect_to_primary(connection: Any) -> None:
    """Refuse a server that is no primary; ``HELLO`` needs no right of the user."""
    await connection.on_connect()
    await connection.send_command("HELLO")
    if b"master" not in await connection.read_response():
        raise ReadOnlyError

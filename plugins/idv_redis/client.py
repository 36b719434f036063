"""The client of a single server, or of the primary behind Sentinels, and the errors of redis-py.

Only this module and `cluster` use redis-py.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from redis import exceptions
from redis.asyncio import Redis, RedisCluster

from idv_redis.options import IN_CLUSTER, RedisServer
from tornado_idv import Broken, LookupFailed, Unavailable

_Reply = TypeVar("_Reply")
_log = logging.getLogger(__name__)
_INTERVAL = 1.0
"""Seconds between two queries to the Sentinels."""
_PATIENCE = 0.5
"""Maximum seconds to wait for the response of a Sentinel."""
_RESPONDING = "Redis: %d of %d Sentinels name a primary of %s; the current primary is %s"
_FIELD = re.compile(r"(\w+):(.*)\r\n")
_HOST = re.compile(r"//([^/?#]*@)?[^/?#]*")
_UNREACHED = "the server cannot be reached, or closed the connection"
_Reasons = tuple[tuple[type[Exception], type[LookupFailed], str], ...]
_OF_CLUSTER: _Reasons = (
    (exceptions.ClusterDownError, Unavailable, "the cluster is down"),
    (exceptions.ClusterError, Unavailable, "the cluster is moving the key to another node"),
    (
        exceptions.RedisClusterException,
        Unavailable,
        "the cluster cannot be reached, or url is not one of its nodes",
    ),
)
"""Reasons for errors in a cluster. There, they take precedence over `_REASONS`."""
_REASONS: _Reasons = (
    # The first match counts. MasterDownError is a ClusterDownError, most others ConnectionErrors.
    (exceptions.AuthenticationError, Broken, "the server refuses the user or password in the url"),
    (
        exceptions.NoPermissionError,
        Broken,
        "the user in the url may not run a command or read a key; see ACL",
    ),
    (exceptions.BusyLoadingError, Unavailable, "the server is loading its data"),
    (exceptions.ReadOnlyError, Unavailable, "the server is a replica, not the primary"),
    (exceptions.OutOfMemoryError, Unavailable, "the server has reached maxmemory"),
    (exceptions.MasterDownError, Unavailable, "the server is a replica without its primary"),
    (exceptions.AskError, Broken, IN_CLUSTER),
    (exceptions.ClusterCrossSlotError, Broken, IN_CLUSTER),
    (exceptions.ClusterDownError, Broken, IN_CLUSTER),
    (exceptions.TryAgainError, Broken, IN_CLUSTER),
    (exceptions.TimeoutError, Unavailable, "the server did not respond in time"),
    (OSError, Unavailable, _UNREACHED),
    (exceptions.ConnectionError, Unavailable, _UNREACHED),
)
_OF_SERVER: dict[str, tuple[type[LookupFailed], str]] = {
    "WRONGTYPE": (Broken, "a key has an unexpected type"),
    "BUSY": (Unavailable, "the server runs a long script"),
}


class Client:
    """A client that runs up to ``pool_size`` commands at a time. Further commands wait.

    The first command connects. ``timeout`` is the maximum time for each attempt to connect and for
    each response, in seconds.
    """

    _in_cluster: ClassVar[bool] = False

    def __init__(self, server: RedisServer, *, timeout: float) -> None:
        self._server = server
        self._settings: dict[str, Any] = {
            # With RESP 3, redis-py would reuse an idle connection with unread data.
            "protocol": 2,
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
        """The epoch of the last known failover, and the host and port of the primary."""

    async def execute(self, *command: str | bytes | int) -> Any:
        """Run a command and return its reply. Raises `LookupFailed`."""
        return await self._run(lambda redis: redis.execute_command(*command))

    async def execute_all(self, *commands: tuple[str, ...]) -> list[Any]:
        """Run commands in order on one connection. Return their replies. Raises `LookupFailed`."""

        def run(redis: Any) -> Awaitable[list[Any]]:
            pipeline = redis.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return pipeline.execute()  # type: ignore[no-any-return]

        return await self._run(run)

    async def _run(self, operation: Callable[[Any], Awaitable[_Reply]]) -> _Reply:
        async with self._slots:
            try:
                redis, primary = await self._connected(), self.primary
                reply = await operation(redis)
                self._check_primary(primary)
            except Exception as error:  # noqa: BLE001 - each is mapped
                raise to_lookup_failed(error, in_cluster=self._in_cluster) from None
            return reply

    def _check_primary(self, primary: str) -> None:
        """Raise `Unavailable` if another server than ``primary`` has become the primary."""
        if self.primary != primary:
            raise Unavailable("another server has become the primary", counts_against_breaker=False)

    async def messages(self, channel: str, *, interval: float) -> AsyncGenerator[bytes | None]:
        """Yield the messages of a channel, and ``None`` after ``interval`` seconds without one.

        The first item is ``None``. It means that the subscription is active, so no later message is
        missed. Raises `LookupFailed` when the connection is lost.
        """
        try:
            redis: Any = await self._connected()
            primary = self.primary
            async with redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                await pubsub.subscribe(channel)
                await pubsub.get_message(timeout=interval)  # confirms the subscription
                yield None
                while True:
                    message = await pubsub.get_message(timeout=interval)
                    self._check_primary(primary)  # redis-py may still use the old primary
                    yield None if message is None else message["data"]
        except Exception as error:  # noqa: BLE001 - each is mapped
            raise to_lookup_failed(error) from None

    async def close(self) -> None:
        """Close every connection. The next command connects again."""
        while self._follower is not None and not self._follower.done():
            self._follower.cancel()  # redis-py sometimes ignores a cancellation
            await asyncio.wait([self._follower], timeout=0.1)
        clients = [each for each in (self._redis, *self._sentinels) if each is not None]
        self._redis, self._sentinels, self._follower = None, (), None
        await asyncio.gather(*(each.aclose() for each in clients))

    async def _connected(self) -> Redis | RedisCluster:
        """Return the client. If the URL has changed in its file, replace the client."""
        url = self._server.url.get_secret_value()
        if url != self._url:
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
        on_connect = None
        if self._server.sentinels:
            if not self.primary:
                raise exceptions.ConnectionError
            url = _HOST.sub(rf"//\g<1>{self.primary}", url.replace("unix:", "redis:", 1), count=1)
            on_connect = _connect_to_primary
        redis = Redis.from_url(url, redis_connect_func=on_connect, **self._settings)
        redis.set_response_callback("INFO", parse_info)  # redis-py's parser takes 0.1 ms
        return redis

    async def _follow(self) -> None:
        """Query the Sentinels for the primary every second. Close connections to an old primary.

        The response with the highest epoch is used, because each failover increments the epoch.
        During a network partition, a Sentinel may still name the old primary.
        """
        service, do_respond = self._server.service, True
        while True:
            asking = (_ask(each, service) for each in self._sentinels)
            responses = await asyncio.gather(*asking, return_exceptions=True)
            named = [each for each in responses if not isinstance(each, BaseException)]
            before = self.primary
            epoch, primary = max(named, default=(-1, ""))
            # Epochs restart if an operator removes and adds the service at all Sentinels.
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
                redis, self._redis = self._redis, None
                with suppress(Exception):
                    if redis is not None:
                        await redis.aclose()
            await asyncio.sleep(_INTERVAL)


def parse_info(response: Any, **_: Any) -> dict[str, str]:
    """Return the fields in the reply to ``INFO``."""
    return dict(_FIELD.findall(response.decode()))


async def _ask(sentinel: Any, service: str | None) -> tuple[int, str]:
    """Query a Sentinel. Return the epoch, and the host and port of the primary."""
    async with asyncio.timeout(_PATIENCE):
        state = await sentinel.sentinel_master(service)
    host = f"[{state['ip']}]" if ":" in state["ip"] else state["ip"]
    return state["config-epoch"], f"{host}:{state['port']}"


async def _connect_to_primary(connection: Any) -> None:
    """Prepare a connection, and reject a replica. Unlike ``ROLE``, ``HELLO`` is always allowed."""
    await connection.on_connect()
    await connection.send_command("HELLO")
    if b"master" not in await connection.read_response():
        raise exceptions.ReadOnlyError


def to_lookup_failed(error: Exception, *, in_cluster: bool = False) -> LookupFailed:
    """Return the `Unavailable` or `Broken` for an error of a command.

    The reason contains no data. Messages of the server are dropped, because some quote a command. A
    timeout counts for the circuit breaker. A lost or refused connection does not count, because
    another attempt is cheap, and an open circuit would prolong the outage.
    """
    if isinstance(error, LookupFailed):
        return error
    if isinstance(error.__context__, ssl.SSLError):
        return Unavailable("the TLS handshake failed; see ssl_ca_certs of the url")
    if type(error) is RuntimeError:  # uvloop raises it for a reset while it connects
        return Unavailable(_UNREACHED, counts_against_breaker=False)
    for kind, failure, reason in (*_OF_CLUSTER, *_REASONS) if in_cluster else _REASONS:
        if isinstance(error, kind):
            waits = isinstance(error, exceptions.TimeoutError) or failure is Broken
            return failure(reason, counts_against_breaker=waits)
    if isinstance(error, exceptions.ResponseError):
        rejected = Broken, "the server rejected a command"
        failure, reason = _OF_SERVER.get(str(error).partition(" ")[0], rejected)
        return failure(reason)
    kind_of = "the client" if isinstance(error, exceptions.RedisError) else "the url"
    return Broken(f"{kind_of} cannot be used: {type(error).__name__}")

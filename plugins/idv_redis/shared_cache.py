"""A shared cache in a Redis server.

Entries and messages are authenticated with the configured secret, so what another client writes to
the server is a miss. The generation is not: changing it only makes every entry a miss, except that
an earlier one brings back entries of its time, until they expire.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from contextlib import aclosing
from typing import Any, ClassVar

from idv_redis.options import RedisCacheOptions
from idv_redis.sealed import Sealer
from tornado_idv import (
    ByCard,
    ByNickname,
    LookupFailed,
    Purge,
    Query,
    SharedAnswer,
    SharedCache,
    SharedResult,
    StartError,
    User,
)

_log = logging.getLogger(__name__)
_CONNECT_TIMEOUT = 1.0


class RedisSharedCache(SharedCache[RedisCacheOptions]):
    """Entries by a keyed hash of their query, a generation, and a channel for purges."""

    options_type = RedisCacheOptions
    interval: ClassVar[float] = 1.0
    """Seconds between two comparisons of the generation, and two attempts to connect."""

    def __init__(self, options: RedisCacheOptions) -> None:
        super().__init__(options)
        try:
            from idv_redis import client  # noqa: PLC0415 - it imports redis-py
        except ModuleNotFoundError as error:
            raise StartError(
                f"shared_cache: {error.name} is not installed; pip install 'tornado-idv[redis]'"
            ) from None
        self._client = client.Client(options, timeout=_CONNECT_TIMEOUT)
        self._sealer = Sealer(options.secret)
        self._generation_key = f"{options.prefix}generation"
        self._channel = f"{options.prefix}purges"
        self._origin = secrets.token_hex(8)
        self._generation: int | None = None
        self._listener: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen for purges, now or as soon as the server can be reached."""
        self._listener = asyncio.create_task(self._listen())

    async def get(self, scope: str, query: Query) -> SharedResult:
        """Return the entry, if it is of the present generation."""
        key = self._key(scope, query)
        generation, sealed = await self._client.execute("MGET", self._generation_key, key)
        present = int(generation or 0)
        record = self._sealer.open(key, sealed or b"")
        if record is None or record[0] != present or present < (self._generation or 0):
            return SharedResult(present)
        user, *rest = record[1:]
        return SharedResult(present, SharedAnswer(user and User(*user), *rest))

    async def put(self, scope: str, query: Query, result: SharedResult) -> None:
        """Store an entry, which the server removes when it is of no use any more."""
        key, answer = self._key(scope, query), result.answer
        if answer is None:
            return
        user = answer.user
        fields = user and (user.plan, user.card_number, user.nickname, user.profile_url)
        record = [result.generation, fields, answer.backend, answer.fresh_until, answer.stale_until]
        sealed = self._sealer.seal(key, record)
        await self._client.execute("SET", key, sealed, "PXAT", math.ceil(answer.stale_until * 1000))

    async def purge(self, purge: Purge) -> None:
        """Begin a generation, and announce it to all who listen."""
        generation = await self._client.execute("INCR", self._generation_key)
        queries = [[type(each) is ByCard, each.text.removeprefix("@")] for each in purge.queries]
        record = [generation, self._origin, list(purge.backends), queries]
        message = self._sealer.seal(self._channel, record)
        await self._client.execute("PUBLISH", self._channel, message)

    async def close(self) -> None:
        """Stop listening, and close every connection."""
        listener = self._listener
        while listener is not None and not listener.done():
            listener.cancel()  # redis-py loses a cancellation now and then
            await asyncio.wait([listener], timeout=0.1)
        await self._client.close()

    def _key(self, scope: str, query: Query) -> str:
        return self.options.prefix + self._sealer.digest(f"{scope}\n{query.text}")

    async def _listen(self) -> None:
        last_reason = ""
        while True:
            try:
                messages = self._client.messages(self._channel, interval=self.interval)
                async with aclosing(messages) as every:
                    async for message in every:
                        if message is None:
                            await self._compare()
                            last_reason = ""
                        else:
                            self._receive(self._sealer.open(self._channel, message))
            except LookupFailed as error:
                if error.reason != last_reason:
                    where = "shared cache: purges of other processes are not received"
                    _log.warning(
                        "%s: %s; trying again every %g s", where, error.reason, self.interval
                    )
                last_reason = error.reason
            await asyncio.sleep(self.interval)

    async def _compare(self) -> None:
        """Purge everything if a generation began of which no message was received."""
        present = int(await self._client.execute("GET", self._generation_key) or 0)
        before, self._generation = self._generation, present
        if present != before:
            self.purged(Purge())
        if before is not None and present < before:
            # The server lost data, and may have entries from before a purge.
            self._generation = await self._client.execute(
                "INCRBY", self._generation_key, before - present + 1
            )

    def _receive(self, record: Any) -> None:
        """Purge what a message names; everything if one before it was not received."""
        if record is None:
            return
        generation, origin, backends, queries = record
        known, self._generation = self._generation or 0, max(generation, self._generation or 0)
        if generation > known + 1:
            self.purged(Purge())
        elif origin != self._origin:
            named = [ByCard(text) if of_card else ByNickname(text) for of_card, text in queries]
            self.purged(Purge(tuple(backends), tuple(named)))

"""A shared cache in a Redis server.

Each purge begins a generation, and an entry has the one in which its lookup began. It is valid if
no purge since then names its user, which a process can say once it knows of them all: they are
published, and the last ones are kept for who has missed some.

Entries and messages are authenticated with the configured secret, so what another client writes to
the server is a miss. The generation is not: changing it only makes entries misses, except that
an earlier one brings back entries of its time, until they expire.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import secrets
import time
from contextlib import aclosing
from typing import Any, ClassVar

from pydantic import SecretStr

from idv_redis.options import NOT_INSTALLED, RedisCacheOptions
from idv_redis.purge_log import PurgeLog, covers
from tornado_idv import (
    Broken,
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

_VERSION = b"2"
_TAG_SIZE = 32


class Sealer:
    """Seals records of JSON; those of another version are not opened."""

    def __init__(self, secret: SecretStr) -> None:
        self._secret = secret

    def digest(self, text: str) -> str:
        """Return a keyed hash, from which the text cannot be guessed."""
        return self._mac(b"name", text.encode()).hex()

    def seal(self, key: str, record: Any) -> bytes:
        """Return the record, authenticated for this key."""
        payload = json.dumps(record, separators=(",", ":")).encode()
        return self._mac(b"record", self._bound(key, payload)) + payload

    def open(self, key: str, sealed: bytes) -> Any:
        """Return the record, ``None`` if it was not sealed for this key with this secret."""
        tag, payload = sealed[:_TAG_SIZE], sealed[_TAG_SIZE:]
        if not hmac.compare_digest(tag, self._mac(b"record", self._bound(key, payload))):
            return None
        return json.loads(payload)

    def _bound(self, key: str, payload: bytes) -> bytes:
        return _VERSION + b"\n" + key.encode() + b"\n" + payload

    def _mac(self, purpose: bytes, data: bytes) -> bytes:
        secret = self._secret.get_secret_value().encode()
        return hmac.digest(secret, purpose + b"\n" + data, "sha256")


_log = logging.getLogger(__name__)
_CONNECT_TIMEOUT = 1.0
_MAX_GENERATION = 2**62
"""Far beyond any number of purges, and below what INCRBY of Redis can add to."""
_KEPT_PURGES = 1000
_KEPT_FOR = 86400
"""Seconds for which a purge is kept."""
_BEGIN = """
local present = redis.call('GET', KEYS[1]) or '0'
if tonumber(present) ~= tonumber(ARGV[1]) then
  return present
end
redis.call('INCR', KEYS[1])
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
redis.call('PUBLISH', ARGV[4], ARGV[2])
"""
"""Begins a generation, keeps its purge and publishes it, unless the present generation is another
one, which is returned. One script: a failover or a full server leaves all of it or nothing.
"""


class RedisSharedCache(SharedCache[RedisCacheOptions]):
    """Entries by a keyed hash of their query, a generation, and a channel for purges."""

    options_type = RedisCacheOptions
    interval: ClassVar[float] = 1.0
    """Seconds between two comparisons of the generation, and two attempts to connect."""
    join_window: ClassVar[float] = 0.02
    """Seconds that a purge waits for the same one of another process.

    All processes are notified of a change in a database within a few milliseconds. Without this,
    each would begin a generation, which all others then receive.
    """

    def __init__(self, options: RedisCacheOptions) -> None:
        super().__init__(options)
        try:
            from idv_redis import client  # noqa: PLC0415 - it imports redis-py
        except ModuleNotFoundError:
            raise StartError(f"shared_cache: {NOT_INSTALLED}") from None
        self._client = client.Client(options, timeout=_CONNECT_TIMEOUT)
        self._sealer = Sealer(options.secret)
        self._generation_key = f"{options.prefix}generation"
        self._channel = f"{options.prefix}purges"
        self._generation: int | None = None
        self._newest: Any = None
        self._is_following = False
        self._state = asyncio.Lock()
        self._log = PurgeLog()
        self._announced: Purge | None = None
        self._has_warned = False
        self._listener: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen for purges, now or as soon as the server can be reached."""
        self._listener = asyncio.create_task(self._listen())

    async def get(self, scope: str, query: Query) -> SharedResult:
        """Return the entry, if it is known that no purge since its generation names it."""
        key = self._key(scope, query)
        generation, sealed = await self._client.execute("MGET", self._generation_key, key)
        present = int(generation or 0)
        record = self._sealer.open(key, sealed or b"")
        known = self._generation or 0
        if record is None or record[0] > present or present != known or not self._is_following:
            # What is looked up now is not stored as if it had begun after a purge unknown here.
            return SharedResult(min(present, known))
        began, user, *rest = record
        answer = SharedAnswer(user and User(*user), *rest)
        return SharedResult(present, answer if self._log.is_valid(began, answer) else None)

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
        """Begin a generation, keep the purge, and announce it to all who listen.

        Or leave that to other processes, if generations that they begin meanwhile name the same.
        """
        try:
            message = await self._begin(purge)
        except LookupFailed:
            await self._announce(purge)
            raise
        if message is not None:
            async with self._state:  # its message may come late, or never
                await self._receive(message)

    async def _begin(self, purge: Purge) -> bytes | None:
        """Return the message, ``None`` if other processes have purged all of it since the call."""
        # Read, and not the generation known here: one that this process has yet to receive may
        # have begun before the change, and entries of it may be from before the change, too.
        since = present = await self._read_generation()
        await asyncio.sleep(self.join_window)
        while True:
            generation = present + 1
            message = self._message(generation, purge)
            keys = self._generation_key, self._kept_key(generation)
            arguments = present, message, _KEPT_FOR, self._channel
            other = await self._client.execute("EVAL", _BEGIN, len(keys), *keys, *arguments)
            if other is None:
                return message
            present = self._to_generation(other)
            if present > since:
                kept = await self._read_kept(since + 1, present)
                if covers(map(_to_purge, kept.values()), purge):
                    return None

    async def _announce(self, purge: Purge) -> None:
        """Announce a purge without a generation: a server that is full refuses only to write.

        Entries up to the present generation are not valid for all who listen.
        """
        if purge is not self._announced:  # it is repeated every second
            present = await self._read_generation()
            message = self._message(present + 1, purge, has_begun=False)
            await self._client.execute("PUBLISH", self._channel, message)
            self._announced = purge

    async def close(self) -> None:
        """Stop listening, and close every connection."""
        listener = self._listener
        while listener is not None and not listener.done():
            listener.cancel()  # redis-py loses a cancellation now and then
            await asyncio.wait([listener], timeout=0.1)
        await self._client.close()

    def _key(self, scope: str, query: Query) -> str:
        return self.options.prefix + self._sealer.digest(f"{scope}\n{query.text}")

    def _kept_key(self, generation: int) -> str:
        return f"{self.options.prefix}purge:{generation % _KEPT_PURGES}"

    def _message(self, generation: int, purge: Purge, *, has_begun: bool = True) -> bytes:
        queries = [[type(each) is ByCard, each.text.removeprefix("@")] for each in purge.queries]
        nonce = secrets.token_hex(8)  # two purges of one generation differ
        record = [generation, has_begun, nonce, list(purge.backends), queries]
        return self._sealer.seal(self._channel, record)

    async def _listen(self) -> None:
        last_reason = ""
        while True:
            try:
                compared = -math.inf
                messages = self._client.messages(self._channel, interval=self.interval)
                async with aclosing(messages) as every:
                    async for message in every:
                        async with self._state:
                            if message is not None:
                                await self._receive(message)
                            if message is None or time.monotonic() >= compared + self.interval:
                                await self._compare(is_new=not self._is_following)
                                compared, self._is_following = time.monotonic(), True
            except Exception as error:  # noqa: BLE001 - later purges must be received
                reason = error.reason if isinstance(error, LookupFailed) else type(error).__name__
                if self._is_following or reason != last_reason:
                    where = "shared cache: purges of other processes are not received"
                    _log.warning("%s: %s; trying again every %g s", where, reason, self.interval)
                last_reason = reason
            self._is_following = False
            await asyncio.sleep(self.interval)

    async def _read_generation(self) -> int:
        return self._to_generation(await self._client.execute("GET", self._generation_key) or 0)

    def _to_generation(self, value: bytes | int) -> int:
        try:
            if 0 <= (generation := int(value)) < _MAX_GENERATION:
                return generation
        except ValueError:
            pass
        raise Broken(f"the key {self._generation_key} is not a generation; delete it")

    async def _compare(self, *, is_new: bool) -> None:
        """Apply the purges of which no message was received; ``is_new`` is the connection."""
        present = await self._read_generation()
        known = self._generation
        if known is not None and present < known:
            await self._replace_lost(known - present + 1)
        elif present != known or is_new:
            await self._catch_up(present)

    async def _receive(self, message: bytes) -> None:
        """Purge what a message names."""
        record = self._sealer.open(self._channel, message)
        if record is None:
            if not self._has_warned:
                _log.warning(
                    "shared cache: a message about a purge cannot be read: it was written with "
                    "another secret, by another version or by another client; each purge that "
                    "cannot be read purges everything, within %g s",
                    self.interval,
                )
            self._has_warned = True
        if record is None or record == self._newest:
            return
        self._apply(record[0], _to_purge(record))
        generation, has_begun = record[:2]
        known = self._generation
        if not has_begun:
            return
        if known is None or generation > known + 1:
            await self._catch_up(generation)
        elif generation == known + 1:
            self._generation, self._newest = generation, record
        else:  # late, or the server lost purges
            await self._compare(is_new=True)

    async def _catch_up(self, present: int) -> None:
        """Apply the purges up to this generation; purge everything if one of them is not kept."""
        known = self._generation
        kept = await self._read_kept(known or 0, present)
        if known in kept and kept[known] != self._newest:
            await self._replace_lost(1)
            return
        oldest = present
        while oldest > (known or 0) and oldest in kept:
            oldest -= 1
        if known is None or oldest > known or kept.get(known) != self._newest:
            self._apply(oldest, Purge())
        for generation in range(oldest + 1, present + 1):
            self._apply(generation, _to_purge(kept[generation]))
        self._generation, self._newest = present, kept.get(present)

    async def _read_kept(self, first: int, last: int) -> dict[int, Any]:
        """Return the kept purges of these generations."""
        generations = range(max(first, last - _KEPT_PURGES + 1), last + 1)
        keys = [self._kept_key(each) for each in generations]
        kept = zip(generations, await self._client.execute("MGET", *keys), strict=True)
        records = {each: self._sealer.open(self._channel, sealed or b"") for each, sealed in kept}
        return {each: record for each, record in records.items() if record and record[0] == each}

    async def _replace_lost(self, increment: int) -> None:
        """Purge everything in all processes, by a generation that is not kept.

        The server lost purges, and may have entries from before them; a process that started
        since then cannot know of that.
        """
        present = await self._client.execute("INCRBY", self._generation_key, increment)
        self._apply(present, Purge())
        self._generation, self._newest = present, None

    def _apply(self, generation: int, purge: Purge) -> None:
        self._log.add(generation, purge)
        # Also if this process began it: others may leave a later change to it.
        self.purged(purge)


def _to_purge(record: Any) -> Purge:
    """Return the purge that a message is about."""
    _, _, _, backends, queries = record
    named = [ByCard(text) if of_card else ByNickname(text) for of_card, text in queries]
    return Purge(tuple(backends), tuple(named))

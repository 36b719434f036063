"""A shared cache in a Redis server.

Purges have consecutive numbers, the *generations*. An entry contains the generation at the start of
its lookup. A purge increments the generation, and writes it as a *mark* for each purged backend or
user, or for everything. A read returns an entry together with the marks that concern it. The entry
is valid if no mark has a later generation. So even a process that missed a purge uses no purged
entry. Purge messages only clear the caches in the memory of the processes.

The marks belong to one run of the server. After a restart, a failover or an eviction, some of them
may be lost, so all entries are misses.

Entries and messages are authenticated by the configured secret. An entry that fails this check is a
miss. The marks are not authenticated: a client that changes them can bring back purged entries
until these entries expire.
"""

import asyncio
import hmac
import json
import logging
import math
import secrets
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from pydantic import SecretStr

from idv_redis.options import NOT_INSTALLED, RedisCacheOptions
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

_VERSION = b"4"
_TAG_SIZE = 32


class Sealer:
    """Authenticates JSON records by a secret, and rejects records of another version."""

    def __init__(self, secret: SecretStr) -> None:
        self._secret = secret

    def digest(self, text: str) -> str:
        """Return a keyed hash of a text. Without the secret, the text cannot be guessed."""
        return self._mac(b"name", text.encode()).hex()

    def seal(self, key: str, record: Any) -> bytes:
        """Return the record as bytes, with a MAC of the key and the record."""
        payload = json.dumps(record, separators=(",", ":")).encode()
        return self._mac(b"record", _VERSION, key.encode(), payload) + payload

    def open(self, key: str, sealed: bytes) -> Any:
        """Return the record, or ``None`` for a record of another key, secret or version."""
        tag, payload = sealed[:_TAG_SIZE], sealed[_TAG_SIZE:]
        if not hmac.compare_digest(tag, self._mac(b"record", _VERSION, key.encode(), payload)):
            return None
        return json.loads(payload)

    def _mac(self, *parts: bytes) -> bytes:
        """Return the MAC of lines. The first is the purpose; only the last may have line breaks."""
        return hmac.digest(self._secret.get_secret_value().encode(), b"\n".join(parts), "sha256")


_log = logging.getLogger(__name__)
_CONNECT_TIMEOUT = 1.0
_PAUSE = 0.2
"""Seconds until the listener for purges connects again. Meanwhile, it receives no purges."""
_EVERYTHING = "*"
_STATE = """
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if not epoch or string.sub(epoch, 1, #run) ~= run or redis.call('HLEN', KEYS[1]) > 100000 then
  epoch = run .. ARGV[1]
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'epoch', epoch, 'generation', 0)
end
"""
"""The start of each script. It begins a new *epoch* if the marks cannot be used.

The marks may be missing, too many, or of another run of the server. Entries of an earlier epoch are
invalid. All marks and the generation are in one hash, so an eviction removes all of them or none.
"""
_COMPARE = f"{_STATE} return {{epoch, redis.call('HGET', KEYS[1], 'generation')}}"
_READ = f"""{_STATE}
local sealed = redis.call('GET', KEYS[2]) or ''
local names = {{string.match(sealed, '^%["(%x*) ?(%x*) ?(%x*)"', {_TAG_SIZE + 1})}}
local marks = redis.call('HMGET', KEYS[1], 'generation', '{_EVERYTHING}', unpack(names))
return {{sealed, epoch, unpack(marks)}}
"""
_PURGE = f"""{_STATE}
local generation = redis.call('HINCRBY', KEYS[1], 'generation', 1)
for i = 4, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[i], generation)
end
if ARGV[2] ~= '' then
  redis.call('PUBLISH', ARGV[2], epoch .. ' ' .. generation .. ' ' .. ARGV[3])
end
"""
"""Script of a purge. Arguments: random text for a new epoch, channel (or ''), message, marks."""


class RedisSharedCache(SharedCache[RedisCacheOptions]):
    """A shared cache in Redis. The key of an entry contains a keyed hash of the query."""

    options_type = RedisCacheOptions
    interval: ClassVar[float] = 1.0
    """Seconds between two checks for a missed purge."""

    def __init__(self, options: RedisCacheOptions) -> None:
        super().__init__(options)
        try:
            from idv_redis import client  # noqa: PLC0415 - it imports redis-py
        except ModuleNotFoundError:
            raise StartError(f"shared_cache: {NOT_INSTALLED}") from None
        self._client = client.Client(options, timeout=_CONNECT_TIMEOUT)
        self._sealer = Sealer(options.secret)
        # Services with different secrets use different marks.
        self._marks = f"{options.prefix}marks:{self._sealer.digest('marks')[:16]}"
        self._channel = f"{options.prefix}purges"
        self._known: tuple[bytes, int] | None = None
        """The epoch and the generation of the last purge that this process has applied."""
        self._primary = ""
        self._has_warned = False
        self._listener: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start to listen for purges. The listener connects when the server can be reached."""
        self._listener = asyncio.create_task(self._listen())

    async def get(self, scope: str, query: Query) -> SharedResult:
        """Return the entry for a query, unless it was purged after the entry's lookup began."""
        key = self._key(scope, query)
        sealed, epoch, generation, *marks = await self._execute(_READ, self._marks, key)
        began = f"{epoch.decode('latin-1')} {int(generation)}"
        record = self._sealer.open(key, sealed)
        if record is None:
            return SharedResult(began)
        _, entry_began, user, *rest = record
        entry_epoch, _, entry_generation = entry_began.partition(" ")
        last = int(generation) if user is None else max(int(each or 0) for each in marks)
        if began.partition(" ")[0] != entry_epoch or int(entry_generation) < last:
            return SharedResult(began)
        return SharedResult(began, SharedAnswer(user and User(*user), *rest))

    async def put(self, scope: str, query: Query, result: SharedResult) -> None:
        """Store an entry. The server removes it at the time ``stale_until``."""
        key, answer = self._key(scope, query), result.answer
        if answer is None:
            return
        user, names = answer.user, []
        if user is not None:
            names = [f"backend {answer.backend}", f"@{user.nickname}", user.card_number]
        record = [
            " ".join(map(self._mark, names)),
            result.generation,
            user and (user.plan, user.card_number, user.nickname, user.profile_url),
            answer.backend,
            answer.fresh_until,
            answer.stale_until,
        ]
        sealed = self._sealer.seal(key, record)
        await self._client.execute("SET", key, sealed, "PXAT", math.ceil(answer.stale_until * 1000))

    async def purge(self, purge: Purge) -> None:
        """Begin a generation, write it to the marks of this purge, and publish the purge."""
        names = [f"backend {each}" for each in purge.backends]
        names += [each.text for each in purge.queries]
        marks = [self._mark(each) for each in names] or [_EVERYTHING]
        arguments: list[str | bytes] = [self._channel, self._message(purge), *marks]
        await self._execute(_PURGE, self._marks, arguments=arguments)

    async def close(self) -> None:
        """Stop listening, and close every connection."""
        while self._listener is not None and not self._listener.done():
            self._listener.cancel()  # redis-py sometimes ignores a cancellation
            await asyncio.wait([self._listener], timeout=0.1)
        await self._client.close()

    async def _execute(self, script: str, *keys: str, arguments: Sequence[str | bytes] = ()) -> Any:
        epoch = secrets.token_hex(8)
        return await self._client.execute("EVAL", script, len(keys), *keys, epoch, *arguments)

    def _key(self, scope: str, query: Query) -> str:
        return self.options.prefix + self._sealer.digest(f"{scope}\n{query.text}")

    def _mark(self, name: str) -> str:
        return self._sealer.digest(f"mark\n{name}")[:32]

    def _message(self, purge: Purge) -> bytes:
        queries = [[type(each) is ByCard, each.text.removeprefix("@")] for each in purge.queries]
        return self._sealer.seal(self._channel, [list(purge.backends), queries])

    async def _listen(self) -> None:
        last_reason: str | None = ""
        while True:
            try:
                messages = self._client.messages(self._channel, interval=self.interval)
                async with aclosing(messages) as every:
                    async for message in every:
                        if message is None:
                            await self._compare()
                            last_reason = None
                        else:
                            await self._receive(message)
            except Exception as error:  # noqa: BLE001 - later purges must be received
                reason = error.reason if isinstance(error, LookupFailed) else type(error).__name__
                if reason != last_reason:
                    where = "shared cache: purges of other processes are not received"
                    _log.warning("%s: %s; trying again every %g s", where, reason, _PAUSE)
                if last_reason is not None:
                    await asyncio.sleep(_PAUSE)
                last_reason = reason

    async def _compare(self) -> None:
        """Read the generation. If a purge was missed, purge the cache of this process."""
        epoch, generation = await self._execute(_COMPARE, self._marks)
        present = epoch, int(generation)
        if present != self._known:
            self._known = present
            self.purged(Purge())
        primary = self._client.primary
        if self._primary not in ("", primary):
            await self.purge(Purge())  # other processes may have missed a purge on the old primary
        self._primary = primary

    async def _receive(self, message: bytes) -> None:
        """Apply the purge in a message. If earlier messages were missed, purge everything."""
        *state, sealed = message.split(b" ", 2)
        record = self._sealer.open(self._channel, sealed)
        if record is None:
            await self._purge_unread()
            return
        epoch, generation = state
        known, self._known = self._known, (epoch, int(generation))
        follows = known is not None and self._known == (known[0], known[1] + 1)
        # A purge by this process is applied again, because lookups may have started since.
        self.purged(_to_purge(record) if follows else Purge())

    async def _purge_unread(self) -> None:
        """After an unreadable message, purge this process's cache and all entries of its secret."""
        if not self._has_warned:
            _log.warning(
                "shared cache: a purge message cannot be read: its sender uses another secret or "
                "another version, or is another program; each such message purges all entries"
            )
        self._has_warned = True
        self.purged(Purge())
        await self._execute(_PURGE, self._marks, arguments=["", "", _EVERYTHING])


def _to_purge(record: Any) -> Purge:
    backends, queries = record
    named = [ByCard(text) if of_card else ByNickname(text) for of_card, text in queries]
    return Purge(tuple(backends), tuple(named))

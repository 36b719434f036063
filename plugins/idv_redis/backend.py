"""Lookups in a Redis server.

A missing key is "not known here" only while the key ``ready`` exists: a server that was restarted
without its data, or is being loaded, has no users either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from idv_redis.options import RedisOptions
from tornado_idv import (
    Backend,
    Broken,
    ByNickname,
    Query,
    StartError,
    Unavailable,
    User,
)

_log = logging.getLogger(__name__)
_START_TIMEOUT = 5.0
"""Seconds in which the server must respond when the backend opens."""
_REQUIRED = ("nickname", "card_number", "plan")


class RedisBackend(Backend[RedisOptions]):
    """Users in hashes, one for each, with one key more for each card number."""

    options_type = RedisOptions

    def __init__(self, options: RedisOptions) -> None:
        super().__init__(options)
        try:
            from idv_redis import client  # noqa: PLC0415 - it imports redis-py
        except ModuleNotFoundError as error:
            raise StartError(
                f"backend {self.name}: {error.name} is not installed; "
                "pip install 'tornado-idv[redis]'"
            ) from None
        self._client = client.Client(options, timeout=options.timeout, cluster=options.cluster)
        self._prefix = options.prefix
        self._checked = False

    async def open(self) -> None:
        """Connect; raises `StartError` for what cannot become right by waiting.

        A server that cannot be reached is logged, and connected to by the next lookup.
        """
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                await self._check()
                ready = await self._is_ready()
        except Broken as error:
            await self._client.close()
            raise StartError(f"backend {self.name}: {error.reason}") from None
        except Unavailable as error:
            _log.error("backend %s: %s; lookups connect again", self.name, error.reason)
        except TimeoutError:
            _log.error("backend %s: the server did not respond in time", self.name)
        else:
            if not ready:
                _log.warning("backend %s: %s", self.name, self._not_ready)

    async def find(self, query: Query) -> User | None:
        """Look the user up; "not known here" only while all users are loaded."""
        if not self._checked:
            await self._check()
        user = await self._find(query)
        if user is None:
            if not await self._is_ready():
                raise Unavailable(self._not_ready, counts_against_breaker=False)
            user = await self._find(query)  # it may have been loaded meanwhile
        return user

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    @property
    def _not_ready(self) -> str:
        return (
            f"the key {self._prefix}ready is missing, so the users are not all loaded; unknown "
            "users are answered 503 until it is set"
        )

    async def _check(self) -> None:
        """Raise `Broken` for a server that removes keys when its memory is full."""
        memory = await self._client.execute("INFO", "memory")
        policy = str(memory.get("maxmemory_policy"))
        if policy.startswith("allkeys-"):
            raise Broken(
                f"the server evicts users when its memory is full (maxmemory-policy {policy}); "
                "set it to noeviction"
            )
        self._checked = True

    async def _is_ready(self) -> bool:
        return bool(await self._client.execute("EXISTS", f"{self._prefix}ready"))

    async def _find(self, query: Query) -> User | None:
        if isinstance(query, ByNickname):
            return await self._read(query.nickname)
        value = await self._client.execute("GET", f"{self._prefix}card:{query.card_number}")
        if value is None:
            return None
        user = await self._read(self._fold(_text(value)))
        if user is None or user.card_number != query.card_number:
            raise Broken("the key of a card number names a user who does not have it")
        return user

    async def _read(self, nickname: str) -> User | None:
        """Return the user of a hash, which must be of this nickname."""
        record = await self._client.execute("HGETALL", f"{self._prefix}user:{nickname}")
        if not record:
            return None
        user = _to_user({_text(name): value for name, value in record.items()})
        if self._fold(user.nickname) != nickname:
            raise Broken("the hash of a user contains another nickname than its key")
        return user

    def _fold(self, nickname: str) -> str:
        return nickname.lower() if self.options.folds_nicknames else nickname


def _to_user(record: Mapping[str, bytes]) -> User:
    fields = [_text(record.get(name, b"")) for name in _REQUIRED]
    if not all(fields):
        raise Broken(f"the hash of a user has no {_REQUIRED[fields.index('')]}")
    url = record.get("profile_url")
    nickname, card_number, plan = fields
    return User(plan, card_number, nickname, None if url is None else _text(url))


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Broken("a value is not valid UTF-8") from None

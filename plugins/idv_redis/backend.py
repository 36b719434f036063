"""Lookups in a Redis server.

The result for a missing user is "not found" under two conditions: the value of the key ``ready`` is
valid for this run of the server, and no key was evicted. Otherwise the server may have lost the
user, or not loaded it yet. In a cluster, each slot has a ``ready`` key.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any

from idv_redis.options import IN_CLUSTER, NOT_INSTALLED, RedisOptions
from tornado_idv import Backend, Broken, ByNickname, Query, StartError, Step, Unavailable, User

_log = logging.getLogger(__name__)
_START_TIMEOUT = 5.0
"""Maximum seconds to wait for the server when the backend opens."""
_REQUIRED = ("nickname", "card_number", "plan")


class RedisBackend(Backend[RedisOptions]):
    """A backend with users as Redis hashes. The key of a card number contains the nickname."""

    options_type = RedisOptions
    can_lose_users = True
    problem: str | None = None
    """The problem found when the backend opened, or ``None`` after a successful lookup."""

    def __init__(self, options: RedisOptions) -> None:
        super().__init__(options)
        try:
            from idv_redis import client, cluster  # noqa: PLC0415 - they import redis-py
        except ModuleNotFoundError:
            raise StartError(f"backend {self.name}: {NOT_INSTALLED}") from None
        self._cluster = cluster.ClusterClient(options) if options.cluster else None
        self._client = self._cluster or client.Client(options, timeout=options.timeout)
        self._ready_key = f"{options.prefix}ready"
        self._ready_keys = cluster.ReadyKeys()
        self._is_checked = False

    @property
    def servers(self) -> Collection[tuple[str, str]]:
        """The address and the role of the primary that the Sentinels have named."""
        return [(self._client.primary, "primary")] if self._client.primary else []

    async def open(self) -> None:
        """Connect and check the server. Raises `StartError` for permanent errors.

        If the server cannot be reached, an error is logged, and the next lookup connects again.
        """
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                self.problem = await self._check()
            self._is_checked = True
        except Broken as error:
            await self._client.close()
            raise StartError(f"backend {self.name}: {error.reason}") from None
        except Unavailable as error:
            self.problem = f"{error.reason}; lookups connect again"
        except TimeoutError:
            self.problem = "the server did not respond in time"
        if self.problem is not None:
            _log.error("backend %s: %s", self.name, self.problem)

    async def find(self, query: Query, steps: list[Step] | None = None) -> User | None:
        """Look the user up. Return ``None`` only if the server has certainly lost no users."""
        user = await self._find(query, steps) or await self._confirm(query, steps)
        self.problem = None
        return user

    explain = find  # the steps are the commands that read users, and their replies

    async def _confirm(self, query: Query, steps: list[Step] | None) -> User | None:
        """Confirm that a user is "not found". Return the user if it was added during the lookup.

        Raises `Unavailable` or `Broken` if the server may have lost the user.
        """
        if not self._is_checked:
            await self._check()  # the server was down when the backend opened
            self._is_checked = True
        ask = self._ask if self._cluster is None else self._cluster.ask
        is_there, problem = await ask(self._key(query))
        if is_there:
            user = await self._find(query, steps)
            if user is not None:
                return user
            problem = "the user was changed during the lookup"
        if problem is not None:
            raise Unavailable(problem, counts_against_breaker=False)
        return None

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    async def _check(self) -> str | None:
        """Check the server. Return the reason why users may be missing, or ``None``.

        Raises `Broken` if the server may evict keys, because it may evict users but keep ``ready``.
        """
        if self._cluster is not None:
            return await self._cluster.check()
        server = await self._client.execute("INFO")
        if server.get("cluster_enabled") == "1":
            raise Broken(IN_CLUSTER)
        policy = server.get("maxmemory_policy")
        if policy != "noeviction":
            raise Broken(
                f"the server evicts keys when its memory is full (maxmemory-policy {policy}), and "
                "users may be among them; set it to noeviction"
            )
        value = await self._client.execute("GET", self._ready_key)
        has_log = server.get("aof_enabled") == "1"
        if value and value.decode("latin-1") != server["run_id"] and not has_log:
            text = (
                "backend %s: the server has appendonly no. A restart may lose new users and keep "
                "the key %s. Then lookups of the lost users return 404. If the key is the run_id "
                "of the server, lookups of unknown users return 503 after a restart"
            )
            _log.warning(text, self.name, self._ready_key)
        return self._problem(value, server)

    async def _ask(self, key: str) -> tuple[bool, str | None]:
        """Return whether a key exists, and the reason why users may be lost, or ``None``."""
        read = "HGETALL" if key.startswith(f"{self.options.prefix}user:") else "GET"
        get_ready = "GET", self._ready_key
        infos = [("INFO", each) for each in ("stats", "server", "replication")]
        before, value, after, stats, server, replication = await self._client.execute_all(
            get_ready, (read, key), get_ready, *infos
        )
        ready = after if after == before else None  # a load began or ended during the read
        return bool(value), self._problem(ready, {**stats, **server, **replication})

    def _problem(self, ready: bytes | None, info: Mapping[str, str]) -> str | None:
        if info["role"] != "master":
            return "the server is a replica and may lack users"
        return self._ready_keys.problem(self._ready_key, ready, info)

    async def _execute(self, steps: list[Step] | None, command: str, key: str) -> Any:
        reply = await self._client.execute(command, key)
        if steps is not None:
            steps.append(Step(command, reply, key))
        return reply

    async def _find(self, query: Query, steps: list[Step] | None) -> User | None:
        if isinstance(query, ByNickname):
            return await self._read(query, steps)
        value = await self._execute(steps, "GET", self._key(query))
        if value is None:
            return None
        named = ByNickname(self._fold(_text(value)))
        user = await self._read(named, steps) or await self._confirm(named, steps)
        if user is None or user.card_number != query.card_number:
            raise Broken("the key of a card number names a user with another card number")
        return user

    async def _read(self, query: ByNickname, steps: list[Step] | None) -> User | None:
        """Return the user with a nickname. Raises `Broken` if the hash has another nickname."""
        record = await self._execute(steps, "HGETALL", self._key(query))
        if not record:
            return None
        user = _to_user({_text(name): value for name, value in record.items()})
        if self._fold(user.nickname) != query.nickname:
            raise Broken("the nickname in the hash of a user differs from the key")
        return user

    def _key(self, query: Query) -> str:
        if isinstance(query, ByNickname):
            return f"{self.options.prefix}user:{query.nickname}"
        return f"{self.options.prefix}card:{query.card_number}"

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

"""Changes that all services over one PostgreSQL database and one shared cache must notice."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing

import aiohttp
from pydantic import SecretStr

from idv_postgres.key_store import PostgresKeyStore
from soak.postgres import PostgresSource
from soak.reference import Source
from support.databases.key_stores import open_store, record
from support.databases.postgres_server import Database
from support.processes.process import ServiceProcess
from support.processes.service import KEY
from tornado_idv.keys.token import issue


class Caller:
    """Sends lookups to the services, and purges to the admin listener of the first service."""

    def __init__(self, session: aiohttp.ClientSession, services: Sequence[ServiceProcess]) -> None:
        self._session = session
        self.ports = [each.port for each in services]
        self._admin = [each.admin_url for each in services]

    async def ask(self, port: int, nickname: str, token: str = KEY) -> tuple[int, bytes]:
        """Look a user up. Return the status and the body of the response."""
        url = f"http://127.0.0.1:{port}/api/v1/identify/url"
        headers = {"Authorization": f"Bearer {token}"}
        async with self._session.post(
            url, json={"input": f"@{nickname}"}, headers=headers
        ) as response:
            return response.status, await response.read()

    async def purge(self, nickname: str) -> None:
        """Purge a user through the admin listener of the first service."""
        url = f"{self._admin[0]}/cache/purge"
        async with self._session.post(url, json={"nickname": nickname}) as response:
            assert response.status in (200, 503)  # 503 without Redis: delivered later


class Edit:
    """A change of a user, of which the services are notified."""

    name = "edit"

    def __init__(self, source: Source, caller: Caller) -> None:
        self._source, self._caller = source, caller

    async def make(self) -> None:
        await asyncio.to_thread(self._source.mark, recreate=False)

    async def is_seen(self, port: int) -> bool:
        marker = self._source.marker
        return await self._caller.ask(port, marker.nickname) == (200, marker.body)


class Purge(Edit):
    """A change of a user without a notification, and a purge by an operator at one service."""

    name = "purge"

    def __init__(self, source: PostgresSource, caller: Caller) -> None:
        super().__init__(source, caller)
        self._postgres = source

    async def make(self) -> None:
        nickname = self._source.marker.nickname
        for port in self._caller.ports:
            await self._caller.ask(port, nickname)  # to cache the user
        self._postgres.mark_silently()
        await self._caller.purge(nickname)


class Keys:
    """A revocation of a key in the key store, and a new key."""

    name = "keys"

    def __init__(self, database: Database, caller: Caller) -> None:
        self._database, self._caller = database, caller
        self._tokens: list[str] = []

    async def make(self) -> None:
        await asyncio.to_thread(self._replace)

    async def is_seen(self, port: int) -> bool:
        if not self._tokens:
            return True
        *revoked, issued = self._tokens[-2:]
        return await self._is_accepted(port, issued) and not any(
            [await self._is_accepted(port, each) for each in revoked]
        )

    async def _is_accepted(self, port: int, token: str) -> bool:
        status, _ = await self._caller.ask(port, "nobody", token)
        return status != 401

    def _replace(self) -> None:
        number = len(self._tokens)
        token = issue(f"key-{number}")
        location = key_store(self._database)
        with closing(location), open_store(location) as store:
            store.add([record(f"key-{number}", token)])
            if self._tokens:
                store.revoke(f"key-{number - 1}", time.time())
        self._tokens.append(token)


class SharedAnswer:
    """A shared answer: one service finds a user, and another still finds it after its removal.

    Only services with the same ``dsn`` share answers. ``alike`` has the ports of these services.
    """

    name = "shared answer"

    def __init__(self, database: Database, caller: Caller, alike: Sequence[int]) -> None:
        self._database, self._caller, self._alike = database, caller, alike
        self._count = 0

    async def make(self) -> None:
        """Do nothing: each call of `is_seen` creates a user."""

    async def is_seen(self, port: int) -> bool:
        self._count += 1
        nickname, other = f"shared-{self._count}", self._next(port)
        self._write(f"INSERT INTO users VALUES ('{nickname}', '9{self._count:08}', 'Free')")
        first, _ = await self._caller.ask(other, nickname)
        self._write(f"DELETE FROM users WHERE nickname = '{nickname}'")
        second, _ = await self._caller.ask(port, nickname)
        return (first, second) == (200, 200)

    def _next(self, port: int) -> int:
        return self._alike[self._alike.index(port) - 1] if port in self._alike else port

    def _write(self, statement: str) -> None:
        self._database.run(
            f"BEGIN; SET LOCAL session_replication_role = replica; {statement}; COMMIT"
        )


def key_store(database: Database) -> PostgresKeyStore:
    """Return the key store in a database, with superuser access."""
    return PostgresKeyStore(SecretStr(database.server.dsn(database.name, "postgres")))

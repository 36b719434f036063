"""A bare ASGI function that queries a source for each request, by the same driver as this service.

The source is SQLite by aiosqlite, an upstream by aiohttp, or PostgreSQL by asyncpg. There is no
guard, log, limit or metric, and no check of what the source returns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import aiosqlite
import asyncpg
import orjson

from benchmarks.peers.asgi import Receive, Rejected, Send, read, respond
from benchmarks.peers.contract import FORMAT, NOT_FOUND, UPSTREAM, found, nickname_in
from benchmarks.peers.on_uvicorn import serve

Fetch = Callable[[str], Awaitable[Sequence[Any] | None]]
"""Returns plan, card number, nickname and profile URL of a user, or ``None``."""
_CONNECTIONS = 32
_SELECT = "SELECT plan, card_number, nickname, profile_url FROM users WHERE nickname = "


class App:
    """The application; the source is open during its lifespan."""

    _fetch: Fetch

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with opened() as self._fetch:
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        try:
            nickname = nickname_in(await read(scope, receive))
        except Rejected as error:
            status, record = error.args
        else:
            status, record = (422, FORMAT) if nickname is None else await self._find(nickname)
        await respond(send, status, record)

    async def _find(self, nickname: str) -> tuple[int, dict[str, str]]:
        row = await self._fetch(nickname)
        return (404, NOT_FOUND) if row is None else (200, found(*row))


@asynccontextmanager
async def opened() -> AsyncIterator[Fetch]:
    """Open the source of the contract."""
    if "path" in UPSTREAM:
        async with aiosqlite.connect(f"file:{UPSTREAM['path']}?mode=ro", uri=True) as connection:

            async def from_sqlite(nickname: str) -> Sequence[Any] | None:
                rows = await connection.execute_fetchall(f"{_SELECT}?", (nickname,))
                return next(iter(rows), None)

            yield from_sqlite
    elif "dsn" in UPSTREAM:
        size = _CONNECTIONS
        async with asyncpg.create_pool(UPSTREAM["dsn"], min_size=size, max_size=size) as pool:

            async def from_postgres(nickname: str) -> Sequence[Any] | None:
                row: Sequence[Any] | None = await pool.fetchrow(f"{_SELECT}$1", nickname)
                return row

            yield from_postgres
    else:
        headers = {"Authorization": f"Bearer {UPSTREAM['token']}"}
        async with aiohttp.ClientSession(UPSTREAM["url"], headers=headers) as session:

            async def from_upstream(nickname: str) -> Sequence[Any] | None:
                async with session.get(f"/people/{nickname}") as response:
                    if response.status == 404:  # noqa: PLR2004
                        return None
                    person = orjson.loads(await response.read())
                return person["plan"], person["card"], person["login"], None

            yield from_upstream


if __name__ == "__main__":
    serve(App())

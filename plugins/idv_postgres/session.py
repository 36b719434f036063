"""A session with a server that may hang: an open connection by itself does not show that.

The kernel of a machine whose server is frozen confirms what it receives, so that neither TCP nor
asyncpg reports an error, and a statement that takes long looks the same. So the server is asked by
a second connection whether it has the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import asyncpg

from idv_postgres.database import Connector
from tornado_idv import LookupFailed, Unavailable

_Result = TypeVar("_Result")
_CHECK_INTERVAL = 10.0
"""Seconds for which a statement runs until the server is asked for the session, and again."""
_QUERY_TIMEOUT = 10.0
"""Seconds in which the server must respond to that."""


@dataclass(frozen=True)
class Session:
    """A connection, and the id of its process on the server."""

    connection: asyncpg.Connection
    connector: Connector
    process: int

    async def wait(self, work: Awaitable[_Result]) -> _Result:
        """Return the result of work on the connection, which is closed after an error.

        To be used where nothing else occupies the event loop: no time-out is due to the server
        then. Raises `Unavailable` if the server does not respond, or has lost the session.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_CHECK_INTERVAL)
                if not task.done():
                    await self._check()
            return await task
        except BaseException:
            # Otherwise what the work does at its end, such as a ROLLBACK, would wait as well.
            self.connection.terminate()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise

    async def _check(self) -> None:
        if not await self._exists():
            raise Unavailable("the server does not respond any more")

    async def _exists(self) -> bool:
        query = f"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {self.process})"  # noqa: S608 - a number
        try:
            connection = await self.connector.connect(statement_cache_size=0)
            try:
                return bool(await connection.fetchval(query, timeout=_QUERY_TIMEOUT))
            finally:
                connection.terminate()
        except (
            OSError,
            asyncpg.PostgresConnectionError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        ):
            return False
        except (asyncpg.PostgresError, LookupFailed):  # such as too many connections
            return True

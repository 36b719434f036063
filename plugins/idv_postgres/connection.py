"""A connection with unique names for its prepared statements."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Self

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement

_MAX_PREPARED = 16
"""Statements that stay prepared; those for a replaced table are not used any more."""


class Connection(asyncpg.Connection):  # type: ignore[misc] # asyncpg has no types
    """A connection without asyncpg's cache of statements; ``with`` terminates it.

    The cache numbers its statements in each process. Behind a pooler two processes may use the same
    session, and one would then run a statement of the other.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._prepared: dict[str, PreparedStatement] = {}
        self.address = self.server = ""
        """The host and port, and the server there, because a balancer may lead to several."""
        self.standby: object = "unknown"
        """The last `Result.standby`. A primary stays a primary for the whole session."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    async def prepare(self, query: str, **options: Any) -> PreparedStatement:
        """Prepare a statement under a random name."""
        return await super().prepare(query, name=f"idv_{secrets.token_hex(16)}", **options)

    async def fetch_prepared(self, sql: str, *values: object, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - asyncpg's
        """Run a statement and keep it prepared; after a change of a table prepare it again."""
        if statement := self._prepared.get(sql):
            try:
                return await statement.fetch(*values, timeout=timeout)
            except (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError):
                pass
        if statement or len(self._prepared) == _MAX_PREPARED:
            self._prepared.clear()
        async with asyncio.timeout(timeout):
            statement = self._prepared[sql] = await self.prepare(sql)
            return await statement.fetch(*values)

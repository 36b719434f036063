"""A connection whose prepared statements have names that no other client uses."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import asyncpg
from asyncpg.exceptions import InvalidCachedStatementError, OutdatedSchemaCacheError
from asyncpg.prepared_stmt import PreparedStatement

_MAX_PREPARED = 16
"""Statements that stay prepared; those of a table that was replaced are not used any more."""


class Connection(asyncpg.Connection):  # type: ignore[misc] # asyncpg has no types
    """A connection without asyncpg's cache of statements, which numbers them in each process.

    Behind a pooler two processes may use the same session, where one would then run the statement
    of the other.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._prepared: dict[str, PreparedStatement] = {}
        self.address = self.server = ""
        """Where it leads, and to which server there, also behind a balancer."""
        self.is_primary = False
        """Whether its server was a primary the last time; of a session that does not change."""
        self.standby: object = None
        """Its server, if that was a standby the last time."""

    async def prepare(self, query: str, **options: Any) -> PreparedStatement:
        """Prepare a statement under a random name."""
        return await super().prepare(query, name=f"idv_{secrets.token_hex(16)}", **options)

    async def fetch_prepared(self, sql: str, *values: object, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - asyncpg's
        """Run a statement that stays prepared; after a change of a table it is prepared again."""
        if statement := self._prepared.get(sql):
            try:
                return await statement.fetch(*values, timeout=timeout)
            except (InvalidCachedStatementError, OutdatedSchemaCacheError):
                pass
        if statement or len(self._prepared) == _MAX_PREPARED:
            self._prepared.clear()
        async with asyncio.timeout(timeout):
            statement = self._prepared[sql] = await self.prepare(sql)
            return await statement.fetch(*values)

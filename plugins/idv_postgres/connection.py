"""Connections that give unique names to their prepared statements."""

import asyncio
import secrets
from typing import Any, Self

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement

_MAX_PREPARED = 16
"""Maximum number of prepared statements. A statement above this number replaces all others."""


class Connection(asyncpg.Connection):  # type: ignore[misc] # asyncpg has no types
    """A connection without asyncpg's cache of statements. The end of a ``with`` block closes it.

    asyncpg's cache names statements by a counter, so all processes use the same names. Behind a
    pooler, two processes may share a session. One could then run a statement of the other process.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._prepared: dict[str, PreparedStatement] = {}
        self.address = self.server = ""
        """The host with its port. ``server`` also identifies the server behind this address."""
        self.standby: object = "unknown"
        """The last `Result.standby`. If it is ``None``, the server is a primary and remains one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    async def prepare(self, query: str, **options: Any) -> PreparedStatement:
        """Prepare a statement under a random name."""
        return await super().prepare(query, name=f"idv_{secrets.token_hex(16)}", **options)

    async def fetch_prepared(self, sql: str, *values: object, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - asyncpg's
        """Run a statement and keep it prepared. After a change of the table, prepare it again."""
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

"""Users on their way into a table: copied into a temporary one while the next are read.

An empty table takes them at once, batch by batch: the server keeps its indexes up, which is most of
the work of an import, while this process validates the next batch. A batch that the table rejects,
mostly for a duplicate, ends that; all that follow wait in the temporary table until duplicates
are rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any

import asyncpg

from idv_postgres.import_sql import ImportSql
from idv_postgres.session import Session

Rows = Iterator[tuple[Any, ...]]
"""A line number each, and texts or ``None``."""

_BATCH_ROWS = 25_000
_BATCH_TEXT = 4 << 20
"""Characters after which a batch of long rows ends."""
_ROWS_AT_ONCE = 200
"""Rows that are read before the event loop continues with the batch that is being sent."""


class Staging:
    """The temporary table, in a transaction of a session.

    With ``inserts`` its rows are also inserted into the table, which is empty and locked, and
    whose unique indexes reject all duplicates.
    """

    def __init__(self, session: Session, sql: ImportSql, *, inserts: bool) -> None:
        self._session = session
        self._connection = session.connection
        self._sql = sql
        self._inserts = inserts
        self._inserted = (0, 0)
        """The ctid of the last row that is in the table, too."""

    @property
    def is_inserted(self) -> bool:
        """Return whether all rows are in the table already; there are no duplicates then."""
        return self._inserts

    async def fill(self, rows: Rows) -> None:
        """Copy all rows; raises what their iteration does."""
        sending: asyncio.Future[None] | None = None
        try:
            while batch := await _read(rows):
                if sending is not None:
                    await self._session.wait(sending)
                sending = asyncio.ensure_future(self._send(batch))
            if sending is not None:
                await self._session.wait(sending)
        except BaseException:
            if sending is not None:
                # Otherwise the server would be waited for, and its error would be logged.
                self._connection.terminate()
                await asyncio.gather(sending, return_exceptions=True)
            raise

    async def insert(self) -> None:
        """Insert the rows that are not in the table yet."""
        await self._connection.execute(self._sql.insert, self._inserted)

    async def _send(self, batch: list[tuple[Any, ...]]) -> None:
        await self._connection.copy_records_to_table(
            "idv_staged", records=batch, columns=self._sql.staged
        )
        if not self._inserts:
            return
        try:
            async with self._connection.transaction():
                await self.insert()
            self._inserted = await self._connection.fetchval(self._sql.last, self._inserted)
        except asyncpg.IntegrityConstraintViolationError:
            # If it is not a duplicate, the same error ends the import at its end.
            self._inserts = False


async def _read(rows: Rows) -> list[tuple[Any, ...]]:
    batch: list[tuple[Any, ...]] = []
    text = 0
    while (
        len(batch) < _BATCH_ROWS
        and text < _BATCH_TEXT
        and (some := list(islice(rows, _ROWS_AT_ONCE)))
    ):
        batch += some
        _, *columns = zip(*some, strict=True)
        text += sum(sum(map(len, filter(None, column))) for column in columns)
        await asyncio.sleep(0)
    return batch

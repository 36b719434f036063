"""One read-only connection, whose queries stop when no caller waits for them any more.

aiosqlite runs the queries of a connection in a thread, and a caller that is cancelled (by its
deadline, for example) stops waiting without stopping its query. `sqlite3_interrupt` would
stop whatever runs at that moment, which may be another caller's query. So the reader sends one
statement at a time, and SQLite itself asks every few thousand steps whether a caller still
waits for it: such a query ends within about a millisecond, and no other is affected.

Most of a lookup's time is the way to that thread and back. So all lookups of one kind that
wait when the connection becomes free are sent in one statement.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import aiosqlite

from idv_sqlite.faults import is_locked
from idv_sqlite.lookup import Lookup, Value

PATIENCE = 0.25
"""Seconds that a locked database is waited for."""

Row = Sequence[Any]

_PAUSE = 0.01
_STEPS = 10_000
"""Instructions of SQLite's machine between two looks at the flag; a lookup by index takes 50."""

# At DEBUG it logs the parameters of every query, which are nicknames and card numbers.
logging.getLogger("aiosqlite").setLevel(logging.INFO)


async def connect(path: Path, *, patience: float) -> aiosqlite.Connection:
    """Opens a file for reading; ``patience`` is in seconds, and holds for each statement.

    Raises `sqlite3.Error`, and leaves no thread behind when it does.
    """
    connection = await aiosqlite.connect(
        read_only_uri(path), uri=True, isolation_level=None, timeout=patience
    )
    try:
        await connection.execute_fetchall("PRAGMA query_only = ON")
        await connection.execute_fetchall("PRAGMA trusted_schema = OFF")
    except BaseException:
        await connection.close()
        raise
    return connection


def read_only_uri(path: Path) -> str:
    """What SQLite opens this file with; characters that mean something in a URI are escaped."""
    return f"{path.absolute().as_uri()}?mode=ro"


class Reader:
    """A connection that looks users up."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection
        self._queues: dict[Lookup, list[_Asked]] = {}
        self._serving: asyncio.Task[None] | None = None
        self.waiting = 0
        self.statements = 0
        """How many have given their rows."""
        self.stopping = False
        self.running: Sequence[_Asked] = ()
        """The lookups of the statement that runs, or ran last."""

    @classmethod
    async def over(cls, connection: aiosqlite.Connection) -> Reader:
        """Makes a connection ready for lookups.

        It is to be without patience: SQLite's own wait for a lock would hold up the thread,
        and the last of many callers would wait many times as long. `fetch` does the waiting.
        """
        reader = cls(connection)
        await connection.set_progress_handler(reader._is_unwanted, _STEPS)
        return reader

    async def fetch(self, lookup: Lookup, values: Sequence[Value]) -> list[Row]:
        """All rows of a lookup, with a value for each ``?``; raises `sqlite3.Error`.

        A database that stays locked is given up after `PATIENCE`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        self.waiting += 1
        try:
            while True:
                try:
                    return await self._rows(lookup, values)
                except sqlite3.Error as error:
                    if not is_locked(error) or loop.time() + _PAUSE > deadline:
                        raise
                await asyncio.sleep(_PAUSE)
        finally:
            self.waiting -= 1

    async def close(self) -> None:
        """Closes the connection after the queries that were asked before; ends its thread."""
        if self._serving is not None:
            await asyncio.wait([self._serving])
        await self._connection.close()

    def _rows(self, lookup: Lookup, values: Sequence[Value]) -> asyncio.Future[list[Row]]:
        """Puts a lookup in the queue."""
        asked = _Asked(values)
        self._queues.setdefault(lookup, []).append(asked)
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        return asked.rows

    async def _serve(self) -> None:
        """Send the waiting lookups, one kind after the other, until none waits."""
        while self._queues:
            lookup = next(iter(self._queues))
            wanted = [asked for asked in self._queues.pop(lookup) if asked.is_wanted]
            if not wanted:
                continue
            size = max(size for size in lookup.batches if size <= len(wanted))
            if len(wanted) > size:
                self._queues[lookup] = wanted[size:]
            await self._answer(lookup, wanted[:size])
        self._serving = None

    async def _answer(self, lookup: Lookup, wanted: list[_Asked]) -> None:
        """Gives each its rows. An error may be about one of them: then each is asked for alone."""
        try:
            rows = await self._ask(lookup, wanted)
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            if len(wanted) == 1:
                wanted[0].fail(error)
            else:
                for asked in wanted:
                    await self._answer(lookup, [asked])
            return
        found: list[list[Row]] = [[] for _ in wanted]
        for row in rows:
            found[row[0]].append(row[1:])
        for asked, its in zip(wanted, found, strict=True):
            asked.give(its)

    async def _ask(self, lookup: Lookup, wanted: Sequence[_Asked]) -> Iterable[Row]:
        if self.stopping:
            raise sqlite3.ProgrammingError("the connection is closed")
        self.running = wanted
        values = [value for asked in wanted for value in asked.values]
        try:
            rows = await self._connection.execute_fetchall(lookup.batches[len(wanted)], values)
        except ValueError:
            raise sqlite3.ProgrammingError("the connection is closed") from None
        self.statements += 1
        return rows

    def _is_unwanted(self) -> bool:
        """Called by SQLite, in the connection's thread, while a statement runs."""
        return self.stopping or not any(asked.is_wanted for asked in self.running)


class _Asked:
    """The values of a lookup that waits for its rows."""

    __slots__ = ("rows", "values")

    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values
        self.rows: asyncio.Future[list[Row]] = asyncio.get_running_loop().create_future()

    @property
    def is_wanted(self) -> bool:
        """Whether its caller still waits."""
        return not self.rows.done()

    def give(self, rows: list[Row]) -> None:
        if self.is_wanted:
            self.rows.set_result(rows)

    def fail(self, error: Exception) -> None:
        if self.is_wanted:
            self.rows.set_exception(error)

"""One read-only connection, and queries that stop when nobody waits for them.

aiosqlite runs the queries of a connection one after the other in a thread of its own,
and a caller that is cancelled (by its deadline, say) stops waiting without stopping its
query. `sqlite3_interrupt` would stop whatever runs at that moment, which may be the query
of somebody else. So each query carries a flag that SQLite's thread looks at itself: when
it binds the parameters, and then every few thousand steps. A query in the queue is thus
never begun, a running one ends within about a millisecond, and no other is ever hit.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import aiosqlite

from idv_sqlite.faults import is_locked
from idv_sqlite.lookup import Value

PATIENCE = 0.25
"""Seconds that a locked database is waited for."""

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
        self.waiting = 0
        self.stopping = False
        self.running: _Parameters | None = None

    @classmethod
    async def over(cls, connection: aiosqlite.Connection) -> Reader:
        """Makes a connection ready for lookups.

        It is to be without patience: SQLite's own wait for a lock would hold up the thread,
        and the last of many callers would wait many times as long. `fetch` does the waiting.
        """
        reader = cls(connection)
        await connection.set_progress_handler(reader._is_unwanted, _STEPS)
        return reader

    async def fetch(self, sql: str, values: Sequence[Value]) -> list[Any]:
        """All rows of a query, with a value for each ``?``; raises `sqlite3.Error`.

        A database that stays locked is given up after `PATIENCE`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            try:
                return await self._fetch_now(sql, values)
            except sqlite3.Error as error:
                if not is_locked(error) or loop.time() + _PAUSE > deadline:
                    raise
            await asyncio.sleep(_PAUSE)

    async def close(self) -> None:
        """Closes the connection after the queries that were asked before; ends its thread."""
        await self._connection.close()

    async def _fetch_now(self, sql: str, values: Sequence[Value]) -> list[Any]:
        parameters = _Parameters(values, self)
        self.waiting += 1
        try:
            return list(await self._connection.execute_fetchall(sql, parameters))
        except ValueError:
            raise sqlite3.ProgrammingError("the connection is closed") from None
        finally:
            self.waiting -= 1
            parameters.wanted = False

    def _is_unwanted(self) -> bool:
        """Asked by SQLite, in the connection's thread, while a query runs."""
        return self.stopping or (self.running is not None and not self.running.wanted)


class _Parameters(Sequence[Value]):
    """The values of a query; SQLite's thread reads them just before it runs."""

    __slots__ = ("_reader", "_values", "wanted")

    def __init__(self, values: Sequence[Value], reader: Reader) -> None:
        self._values = values
        self._reader = reader
        self.wanted = True

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Value]: ...
    def __getitem__(self, index: int | slice) -> Value | Sequence[Value]:
        if self._reader.stopping or not self.wanted:
            raise sqlite3.InterfaceError("nobody waits for this query")
        self._reader.running = self
        return self._values[index]

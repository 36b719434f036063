"""One read-only connection for lookups. A query stops when no caller waits for it.

aiosqlite runs the queries of a connection in a thread. A cancelled caller (after its deadline, for
example) stops waiting, but its query continues. `sqlite3_interrupt` would stop any statement that
runs at that moment, perhaps another caller's. So the reader sends one statement at a time. While
the statement runs, SQLite checks regularly whether a caller waits. An abandoned query ends within
about a millisecond. No other query is affected.

A lookup spends most of its time on the switch to the thread and back. So when the connection
becomes free, one statement serves all waiting lookups of one kind.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import aiosqlite

from idv_sqlite.errors import is_locked
from idv_sqlite.files import uri_of
from idv_sqlite.table import LookupStatement, Value

BUSY_TIMEOUT = 0.25
"""Maximum seconds to wait for a locked database."""

Row = Sequence[Any]

_PAUSE = 0.01
_STEPS = 10_000
"""SQLite instructions between two checks for abandoned queries. A lookup by index takes 50."""

# At DEBUG, aiosqlite logs the parameters of every query, which are nicknames and card numbers.
logging.getLogger("aiosqlite").setLevel(logging.INFO)


def connect(path: Path) -> aiosqlite.Connection:
    """Return a connection for reading. Each statement waits up to `BUSY_TIMEOUT` for a lock."""
    uri = uri_of(path, read_only=True)
    return aiosqlite.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT)


_Request: TypeAlias = "tuple[Sequence[Value], asyncio.Future[list[Row]]]"
"""A queued lookup: its parameters, and the future for its rows."""


class Reader:
    """A connection with a queue of lookups.

    If SQLite waited for a lock, queued lookups would wait one after the other, each for the busy
    timeout. So SQLite does not wait: `fetch` waits instead, and repeats the lookup.
    """

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self.connection = connection
        self._queues: dict[LookupStatement, list[_Request]] = {}
        self._serve_task: asyncio.Task[None] | None = None
        self.waiting = 0
        self.stopping = False
        self.running: Sequence[_Request] = ()
        """The lookups of the current or last statement."""

    async def prepare(self) -> None:
        """Prepare the connection for lookups. Raises `sqlite3.Error`."""
        await self.connection.execute_fetchall("PRAGMA trusted_schema = OFF")
        # The first statement opens the -wal file: here, not in the first lookup.
        await self.connection.execute_fetchall("PRAGMA schema_version")
        await self.connection.execute_fetchall("PRAGMA busy_timeout = 0")
        # SQLite calls the handler in the connection's thread during a statement.
        await self.connection.set_progress_handler(
            lambda: self.stopping or not _pending(self.running), _STEPS
        )

    async def fetch(self, lookup: LookupStatement, values: Sequence[Value]) -> list[Row]:
        """Return all rows of a lookup. ``values`` has a value for each ``?`` of its statement.

        Raises `sqlite3.Error`, for a locked database only after `BUSY_TIMEOUT`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + BUSY_TIMEOUT
        self.waiting += 1
        try:
            while True:
                request: _Request = values, loop.create_future()
                self._queues.setdefault(lookup, []).append(request)
                if self._serve_task is None:
                    self._serve_task = loop.create_task(self._serve())
                try:
                    return await request[1]
                except sqlite3.Error as error:
                    if not is_locked(error) or loop.time() + _PAUSE > deadline:
                        raise
                await asyncio.sleep(_PAUSE)
        finally:
            self.waiting -= 1

    async def close(self) -> None:
        """Wait for the queued queries. Then close the connection and end its thread."""
        if self._serve_task is not None:
            await asyncio.wait([self._serve_task])
        await self.connection.close()

    async def _serve(self) -> None:
        """Run the queued lookups until the queues are empty. The kinds of lookup take turns."""
        while self._queues:
            lookup = next(iter(self._queues))
            if not (pending := _pending(self._queues.pop(lookup))):
                continue
            size = max(size for size in lookup.batches if size <= len(pending))
            if len(pending) > size:
                self._queues[lookup] = pending[size:]
            await self._run_batch(lookup, pending[:size])
        self._serve_task = None

    async def _run_batch(self, lookup: LookupStatement, batch: list[_Request]) -> None:
        """Run one statement. After a failure, run each lookup alone, as one may be the cause."""
        found: list[list[Row]] = [[] for _ in batch]
        try:
            for place, *row in await self._execute(lookup, batch):
                found[place].append(row)
        except Exception as error:  # noqa: BLE001 - raised to the caller
            if len(batch) > 1:
                for request in batch:
                    await self._run_batch(lookup, [request])
            for _, rows in _pending(batch):
                rows.set_exception(error)
            return
        for (_, rows), request_rows in zip(batch, found, strict=True):
            if not rows.done():
                rows.set_result(request_rows)

    async def _execute(self, lookup: LookupStatement, batch: Sequence[_Request]) -> Iterable[Row]:
        self.running = batch
        values = [value for request, _ in batch for value in request]
        try:
            if not self.stopping:
                return await self.connection.execute_fetchall(lookup.batches[len(batch)], values)
        except ValueError:  # aiosqlite raises it for a closed connection
            pass
        raise sqlite3.ProgrammingError("the connection is closed")


def _pending(requests: Iterable[_Request]) -> list[_Request]:
    """Return the requests whose callers are still waiting."""
    return [request for request in requests if not request[1].done()]

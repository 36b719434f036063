"""One SQLite file as it was opened: its connections, and whether it is still the same.

The file is never opened except by SQLite: closing any other descriptor of it would drop
the locks that SQLite holds in this process (POSIX), and a lookup could then read what a
writer has half written. So its header's change counter is read by way of SQLite, whose
``data_version`` moves when the counter does, and the rest is `os.stat`.
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from contextlib import AsyncExitStack
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import aiosqlite

from idv_sqlite import table
from idv_sqlite.faults import could_not_tell
from idv_sqlite.options import SqliteOptions
from idv_sqlite.reader import PATIENCE, Reader, connect
from tornado_idv import Broken, FileSignature, Query, Unavailable, User

CHECKED_SIZE = 64 * 1024**2
"""Bytes up to which a file's every page is checked; of a larger one, header and schema are."""

_waiting = attrgetter("waiting")


class State(NamedTuple):
    """What is compared from one look to the next."""

    signature: FileSignature
    data_version: int
    schema_version: int

    def written_by_sqlite_since(self, earlier: State) -> bool:
        """Whether it is the same file, with rows that SQLite saw change, and the same schema."""
        return (
            self.signature.is_same_file(earlier.signature)
            and self.schema_version == earlier.schema_version
            and self.data_version != earlier.data_version
        )


class OpenFile:
    """The connections to one file, opened and checked."""

    def __init__(
        self,
        path: Path,
        users: table.Table,
        readers: list[Reader],
        watcher: aiosqlite.Connection,
        state: State,
    ) -> None:
        self.users = users
        self.state = state
        self._path = path
        self._readers = readers
        self._watcher = watcher
        self._checked_after = 0
        self._was_untouched = False

    @classmethod
    async def open(cls, options: SqliteOptions) -> OpenFile:
        """Opens and checks the file; raises `Unavailable` or `Broken` with nothing left open."""
        path = options.path
        before = signature_of(path)
        if not path.is_file():
            # To open a FIFO would block SQLite's thread for ever.
            raise Unavailable("not a regular file; write the path of a SQLite database")
        if before.size == 0:
            raise Unavailable("the file is empty")
        try:
            async with AsyncExitStack() as stack:
                watcher = await connect(path, patience=PATIENCE)
                stack.push_async_callback(watcher.close)
                await _check(watcher, before.size)
                users = await table.inspect(watcher, options)
                readers = []
                for _ in range(options.readers):
                    connection = await connect(path, patience=0)
                    stack.push_async_callback(connection.close)
                    readers.append(await Reader.over(connection))
                state = await _state(path, watcher)
                if not state.signature.is_same_file(before):
                    raise Unavailable("the file was replaced while it was opened")
                stack.pop_all()
        except sqlite3.Error as error:
            raise could_not_tell(error) from None
        return cls(path, users, readers, watcher, state)

    def is_untouched(self) -> bool:
        """Whether nobody wrote to the file, or replaced it, since its `state` was taken.

        It looks once for all whose rows had come by then: a statement is counted when its rows
        are there, so a look that precedes them never speaks for them. What it said stands until
        more rows come, also if the `state` is taken anew.
        """
        statements = sum([reader.statements for reader in self._readers])
        if statements != self._checked_after:
            self._checked_after = statements
            try:
                self._was_untouched = signature_of(self._path) == self.state.signature
            except Unavailable:
                self._was_untouched = False
        return self._was_untouched

    def was_set_aside(self) -> bool:
        """Whether the path leads elsewhere or nowhere, while this file is intact."""
        try:
            return not signature_of(self._path).is_same_file(self.state.signature)
        except Unavailable:
            return True

    async def look(self) -> State:
        """The state of now; raises `sqlite3.Error`, and `Unavailable` if the file is gone."""
        return await _state(self._path, self._watcher)

    async def find(self, query: Query) -> User | None:
        """Asks the reader for whom the fewest wait; raises `Unavailable` or `Broken`."""
        reader = min(self._readers, key=_waiting)
        lookup = self.users.lookups[type(query)]
        try:
            rows = await reader.fetch(lookup, lookup.values(query))
        except sqlite3.Error as error:
            raise could_not_tell(error) from None
        return self.users.user(rows)

    def stop(self) -> None:
        """Stops the queries that run or wait; whoever awaits one is told `Unavailable`."""
        for reader in self._readers:
            reader.stopping = True

    async def close(self) -> None:
        """Closes every connection after its queries, and ends its thread."""
        closing = [self._watcher.close(), *(reader.close() for reader in self._readers)]
        await asyncio.gather(*closing)


def signature_of(path: Path) -> FileSignature:
    """Return the file's signature; raises `Unavailable` if the path leads to no file."""
    try:
        return FileSignature.of(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            reason = "the path is a loop of symbolic links; make the link lead to a file"
        else:
            reason = f"the file cannot be reached: {error.strerror}"
        raise Unavailable(reason) from None


async def _check(watcher: aiosqlite.Connection, size: int) -> None:
    """Reads every page of a file that is not too large for it; SQLite's thread does the work."""
    if size <= CHECKED_SIZE:
        ((verdict,),) = await watcher.execute_fetchall("PRAGMA quick_check(1)")
        if verdict != "ok":
            raise Broken("the database is damaged")


async def _state(path: Path, watcher: aiosqlite.Connection) -> State:
    # The transaction's lock keeps writers out, so that stamp and version are of one moment.
    # (Not in WAL mode, where a checkpoint can come between; the file is then opened anew.)
    await watcher.execute_fetchall("BEGIN")
    try:
        ((schema_version,),) = await watcher.execute_fetchall("PRAGMA schema_version")
        ((data_version,),) = await watcher.execute_fetchall("PRAGMA data_version")
        return State(signature_of(path), data_version, schema_version)
    finally:
        await watcher.execute_fetchall("ROLLBACK")

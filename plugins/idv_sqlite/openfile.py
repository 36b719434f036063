"""One open SQLite file: its connections, and the detection of changes.

Only SQLite opens the file. If this process opened and closed it, too, POSIX would drop SQLite's
locks, and a lookup could read a half-written page. So changes are detected without reading the
file: by SQLite's ``data_version``, and by the file's status.
"""

import asyncio
import errno
import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiosqlite

from idv_sqlite import table
from idv_sqlite.errors import mapped_errors, to_lookup_failed
from idv_sqlite.options import SqliteOptions
from idv_sqlite.reader import Reader, connect
from tornado_idv import Broken, ByNickname, FileSignature, Query, Step, Unavailable, User

CHECKED_SIZE = 64 * 1024**2
"""Maximum bytes for a check of every page and row. In a larger file, rows are only counted."""
_TICKS = 0.01
"""Seconds of at least one tick of the kernel's clock for file times (1 to 10 ms)."""
_LACKS_ROWS = "an index lacks rows of its table; repair it by the statement REINDEX"


@dataclass(frozen=True, slots=True)
class State:
    """The state of a file at a check. The next check compares it with the new state.

    ``sidecars`` has device and inode of the ``-wal`` and ``-shm`` files. An open connection still
    uses these files after their replacement. ``revision`` can be compared after a restart of the
    process. It is read before ``data_version``, so it is never newer than this version.
    """

    signature: FileSignature
    sidecars: frozenset[tuple[int, int]]
    data_version: int
    schema: Sequence[object]
    revision: str = field(compare=False)


@dataclass(eq=False)
class OpenFile:
    """A file that was opened and checked, with all connections to it."""

    options: SqliteOptions
    target: Path
    users: table.Table
    readers: list[Reader]
    watcher: aiosqlite.Connection
    state: State = field(init=False)

    @classmethod
    async def open(cls, options: SqliteOptions) -> "OpenFile":
        """Open and check the file. Raises `Unavailable` or `Broken`, and then closes the file."""
        before = signature_of(path := options.path)
        if not path.is_file():
            # Opening a FIFO would block SQLite's thread forever.
            raise Unavailable("not a regular file; write the path of a SQLite database")
        if before.size == 0:
            raise Unavailable("the file is empty")
        with mapped_errors(to_lookup_failed):
            async with AsyncExitStack() as stack:
                watcher = await stack.enter_async_context(connect(path))
                await watcher.execute_fetchall("PRAGMA trusted_schema = OFF")
                if before.size <= CHECKED_SIZE:
                    ((verdict,),) = await watcher.execute_fetchall("PRAGMA quick_check(1)")
                    if verdict != "ok":
                        raise Broken(f"the database is damaged, or {_LACKS_ROWS}")
                users = await table.inspect(watcher, options)
                readers = []
                for _ in range(options.readers):
                    readers.append(Reader(await stack.enter_async_context(connect(path))))
                    await readers[-1].prepare()
                file = cls(options, path.resolve(), users, readers, watcher)
                await file.compare_indexes(every_row=before.size <= CHECKED_SIZE)
                file.state = await file.check()
                if not file.state.signature.is_same_file(before):
                    raise Unavailable("the file was replaced while it was opened")
                stack.pop_all()
        return file

    def is_unmodified(self) -> bool:
        """Return whether the signature has not changed since the last check."""
        return FileSignature.find(self.options.path) == self.state.signature

    def has_lost_sidecar(self) -> bool:
        """Return whether the ``-wal`` or ``-shm`` file was removed or replaced."""
        before = self.state.sidecars
        return bool(before) and not before <= sidecars_of(self.target)

    def is_intact(self) -> bool:
        """Return whether the open connections still read the users of the last check."""
        now, was = FileSignature.find(self.options.path), self.state.signature
        is_in_place = now is not None and now.is_same_file(was)
        return not is_in_place or (now == was and self.has_lost_sidecar())

    async def check(self) -> State:
        """Return the current state. Raises `sqlite3.Error`, or `Unavailable` during a copy over it.

        After a change, read the state again `_TICKS` later: a copy that continues then gives the
        file another time.
        """
        was, before = getattr(self, "state", None), await self._read_state()
        if before == was:
            return before
        await asyncio.sleep(_TICKS)
        state = await self._read_state()
        (*old, _), (*new, _) = before.signature, state.signature  # without the time of chmod
        is_written = old != new and old[:2] == new[:2] and not state.sidecars  # no WAL mode
        if is_written and before.data_version == state.data_version:
            raise Unavailable("another program overwrites the file without SQLite")
        return state

    async def _read_state(self) -> State:
        # The lock of the transaction excludes writers, so signature and version are consistent.
        # In WAL mode, a checkpoint may still come between. Then the file is opened again.
        await self.watcher.execute_fetchall("BEGIN")
        try:
            revision = revision_of(self.options.path, self.target)
            # Not its version: two files have the same one after as many changes of the schema.
            schema = [*await self.watcher.execute_fetchall("SELECT * FROM sqlite_master")]
            ((data_version,),) = await self.watcher.execute_fetchall("PRAGMA data_version")
            signature = signature_of(self.options.path)
            return State(signature, sidecars_of(self.target), data_version, schema, revision)
        finally:
            await self.watcher.execute_fetchall("ROLLBACK")

    async def compare_indexes(self, *, every_row: bool = False) -> None:
        """Raise `Broken` if an index lacks rows of its table. For a view, check all tables.

        Without ``every_row``, rows are only counted, which takes less than a fifth of the time.
        Neither counts nor ``PRAGMA quick_check`` detect wrong values in an index.
        """
        found = await self.watcher.execute_fetchall(
            "SELECT t.name, i.name FROM sqlite_master AS t, pragma_index_list(t.name) AS i WHERE "
            "t.type = 'table' AND (? OR t.name = ? COLLATE NOCASE)",
            [self.users.is_view, self.options.table],
        )
        names = [(table.quoted(name), table.quoted(index)) for name, index in found]
        statements = [  # without a condition, SQLite would count the smallest index instead
            f"SELECT iif(count(*) = (SELECT count(*) FROM {name} INDEXED BY {index} WHERE 1), "  # noqa: S608 - quoted
            f"'ok', '') FROM {name} NOT INDEXED"
            for name, index in names
        ]
        if every_row:
            statements += [f"PRAGMA integrity_check({name})" for name in dict(names)]
        for statement in statements:
            try:
                ((verdict,), *_) = await self.watcher.execute_fetchall(statement)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_ERROR:
                    raise
                continue  # a partial index, or one on a function of the writer: none to count
            if verdict != "ok":
                raise Broken(_LACKS_ROWS)

    async def find(self, query: Query, steps: list[Step] | None = None) -> User | None:
        """Look a user up by the least busy reader. Raises `Unavailable` or `Broken`."""
        reader = min(self.readers, key=lambda reader: reader.waiting)
        lookup = self.users.lookups[type(query)]
        values = lookup.values(query)
        if steps is not None:
            steps += (Step("statement", lookup.sql), Step("parameters", values))
        try:
            rows = await reader.fetch(lookup, values)
            if not rows and isinstance(query, ByNickname):
                # A program may have stored the nickname with @. `to_user` raises `Broken` for it.
                # An UPDATE may have removed the @ since the first statement: find both forms.
                both = lookup.values(ByNickname(query.text)), values
                signed, exact = await asyncio.gather(*(reader.fetch(lookup, x) for x in both))
                rows = [*signed, *exact]
        except sqlite3.Error as error:
            raise to_lookup_failed(error) from None
        if steps is not None:
            steps += (Step("rows", len(rows)), *(Step("row", row) for row in rows))
        if len(rows) > 1:
            raise Broken("two rows answer one query")
        return table.to_user(rows[0]) if rows else None

    async def close(self) -> None:
        """Wait for the queries of each connection. Then close it and end its thread."""
        await asyncio.gather(self.watcher.close(), *(each.close() for each in self.readers))


def sidecars_of(path: Path) -> frozenset[tuple[int, int]]:
    """Return device and inode of the ``-wal`` and ``-shm`` files. ``path`` must not be a link."""
    found = [FileSignature.find(Path(f"{path}{suffix}")) for suffix in ("-wal", "-shm")]
    return frozenset(each[:2] for each in found if each)


def revision_of(path: Path, target: Path) -> str:
    """Return an identifier of the content of the file and of its ``-wal`` file.

    It does not use SQLite's change counter: in WAL mode, writes do not change this counter.
    """
    wal = FileSignature.find(Path(f"{target}-wal"))
    signatures = [signature_of(path), wal if wal and wal.size else None]
    return hashlib.sha256(repr(signatures).encode()).hexdigest()


def signature_of(path: Path) -> FileSignature:
    """Return the signature of the file. Raises `Unavailable` if the file cannot be reached."""
    try:
        return FileSignature.of(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            reason = "the path is a loop of symbolic links; make the link lead to a file"
        elif error.errno == errno.ENOENT:
            reason = "there is no such file; `tornado-idv users import` creates one"
        else:
            reason = f"the file cannot be reached: {error.strerror}"
        raise Unavailable(reason) from None

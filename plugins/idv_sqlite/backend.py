"""Lookups in a SQLite file that may be written, replaced or damaged at any time.

Each second the backend looks at the file. What it sees comes to one of three things:

- Written by way of SQLite: every connection sees the new rows by itself; the cache is told.
- Replaced, or written without SQLite knowing (a copy over it): the file is opened anew and
  checked, lookups are switched to it, the cache is told, and the old connections close.
- Gone, or bad: lookups can no longer be sure. While the old file is intact behind its open
  connections (deleted, or another renamed over it), the users in it are still *found*, but
  "not known" is no longer said of anybody: `Unavailable` or `Broken` is raised instead. A
  file that was damaged in place is closed, and every lookup raises. The backend mends
  itself at the first look that finds a good file.

An answer counts only while the file's time and size are those of the last look; else the
backend looks first. (After a copy over the file, a query may read some pages of the old file
from SQLite's memory and some of the new one, and find the nickname of one user in an index
that leads to the row of another.)
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from typing import ClassVar

from idv_sqlite.faults import is_locked
from idv_sqlite.openfile import OpenFile, signature_of
from idv_sqlite.options import SqliteOptions
from tornado_idv import (
    Backend,
    LookupFailed,
    Query,
    StartError,
    Unavailable,
    User,
    format_traceback,
)

_log = logging.getLogger(__name__)


class SqliteBackend(Backend[SqliteOptions]):
    """Users in one table or view of a SQLite file."""

    options_type = SqliteOptions
    look_every: ClassVar[float] = 1.0
    """Seconds between two looks at the file."""

    def __init__(self, options: SqliteOptions) -> None:
        super().__init__(options)
        self._file: OpenFile | None = None
        self._trouble: LookupFailed | None = None
        self._watching: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Opens and checks the file."""
        try:
            self._adopt(await OpenFile.open(self.options))
        except LookupFailed as error:
            where = f"backend {self.name}: {self.options.path}"
            raise StartError(f"{where}: {error.reason}") from None
        self._watching = asyncio.create_task(self._watch())

    async def find(self, query: Query) -> User | None:
        """Asks the table; answers from a file that was meddled with are asked for anew."""
        while True:
            file = self._file
            if file is None:
                raise self._fault()
            try:
                user = await file.find(query)
            except LookupFailed:
                if self._file is file:
                    raise
                continue  # it was closed under the query: what came instead of it answers
            if self._trouble is None and not file.is_untouched():
                await self.look()
                if self._closed:
                    raise Unavailable("the backend is closed")
            if self._file is file:
                break
        if user is None and self._trouble is not None:
            raise self._fault()
        return user

    async def close(self) -> None:
        """Stops what still runs, closes every connection and ends its thread.

        No look begins after it, as none would close the file that it opened anew.
        """
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._looking is not None:
            await asyncio.wait([self._looking])
        await self._drop()

    async def look(self) -> None:
        """Looks at the file and follows what happened to it up to now.

        Callers at once share one look, but not one that was under way before: it may have seen
        the file as it was then. A caller that is cancelled leaves the look running. Once the
        backend is closed, nothing is looked at.
        """
        if self._looking is not None and not self._looking.done():
            await asyncio.wait([self._looking])
        if self._closed:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        await asyncio.shield(self._looking)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.look_every)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - the watch outlives what one look meets
                _log.error(
                    "backend %s: a look at the file failed:\n%s", self.name, format_traceback(error)
                )

    async def _look(self) -> None:
        if self._closed:
            return
        try:
            if self._file is None or not await self._is_followed(self._file):
                await self._reopen()
        except LookupFailed as error:
            await self._suffer(error)
        else:
            self._recover()

    async def _is_followed(self, file: OpenFile) -> bool:
        """Whether the open file is the one at the path, and SQLite knows what was written to it."""
        was = file.state
        if not signature_of(self.options.path).is_same_file(was.signature):
            return False
        try:
            now = await file.look()
        except sqlite3.Error as error:
            return is_locked(error)
        if now == was:
            return True
        if not now.written_by_sqlite_since(was):
            return False
        file.state = now
        self.notify_changed()
        return True

    async def _reopen(self) -> None:
        new, old = await OpenFile.open(self.options), self._file
        self._adopt(new)
        self.notify_changed()
        if old is not None:
            _log.info("backend %s: the file was replaced; the new one answers", self.name)
            await old.close()

    def _adopt(self, file: OpenFile) -> None:
        self._file = file
        for caution in file.users.cautions:
            _log.warning("backend %s: %s", self.name, caution)

    async def _suffer(self, error: LookupFailed) -> None:
        """Remembers why lookups cannot be sure; closes a file that was damaged in place."""
        if self._trouble is None or self._trouble.reason != error.reason:
            _log.error("backend %s: %s", self.name, error.reason)
        self._trouble = error
        if self._file is not None and not self._file.was_set_aside():
            await self._drop()

    def _recover(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            _log.info("backend %s: the file is good again", self.name)

    async def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.stop()
            await file.close()

    def _fault(self) -> LookupFailed:
        """A new error each time, because the one who catches it adds to it."""
        if self._trouble is None:
            return Unavailable("the file is not open")
        return type(self._trouble)(self._trouble.reason)

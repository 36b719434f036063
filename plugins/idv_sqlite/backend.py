"""Lookups in a SQLite file. Other programs may write, replace or damage the file at any time.

The backend checks the file every second. A check may detect three changes:

- The file was written through SQLite. Every connection sees the new rows. The cache is purged.
- The file was replaced, or overwritten without SQLite (for example, by ``cp``). The backend opens
  and checks the new file, switches lookups to it, purges the cache, and closes the old connections.
  During this check, users of a *replaced* file are found, but not cached. Lookups without
  a user wait for the check, and so do all lookups in an *overwritten* file.
- The file is missing or invalid. If the old file was deleted or replaced, the open connections
  still find its users, and lookups of other users raise `Unavailable` or `Broken`. If the file was
  damaged in place, the backend closes it, and every lookup raises an error. When a later check
  finds a valid file, the backend opens it.

Before a lookup returns, the file's signature is compared with its signature at the last check.
After a change, the file is checked, and the query is repeated, because SQLite may combine pages of
the old content with pages of an overwritten file, and follow an index entry to another user's row.
"""

import asyncio
import logging
import sqlite3
from typing import ClassVar

from idv_sqlite.errors import is_locked
from idv_sqlite.openfile import CHECKED_SIZE, OpenFile, sidecars_of, signature_of
from idv_sqlite.options import SqliteOptions
from idv_sqlite.store import SqliteUserStore
from tornado_idv import (
    Backend,
    BackendResult,
    LookupFailed,
    Query,
    StartError,
    Step,
    Unavailable,
    User,
    format_traceback,
)

_log = logging.getLogger(__name__)


class SqliteBackend(Backend[SqliteOptions]):
    """Users in one table or view of a SQLite file."""

    options_type = SqliteOptions
    check_interval: ClassVar[float] = 1.0
    """Seconds between two checks of the file."""

    _file: OpenFile | None = None
    _error: LookupFailed | None = None
    _watch_task: asyncio.Task[None] | None = None
    _check_task: asyncio.Task[None] | None = None
    _closed = False

    @classmethod
    def user_store(cls, options: SqliteOptions) -> SqliteUserStore:
        """Return the store of all users in the table. The store of a view is read-only."""
        return SqliteUserStore(options)

    @property
    def problem(self) -> str | None:
        """The problem with the file, or ``None``. Lookups may still find users of the old file."""
        return None if self._error is None else self._error.reason

    @property
    def revision(self) -> str | None:
        """The file's revision at the last check. No cached answer is from an earlier revision."""
        return None if self._file is None else self._file.state.revision

    async def open(self) -> None:
        """Open and check the file. Raises `StartError`."""
        try:
            self._adopt(await OpenFile.open(self.options))
        except LookupFailed as error:
            raise StartError(f"backend {self.name}: {self.options.path}: {error.reason}") from None
        self._watch_task = asyncio.create_task(self._watch())

    async def find(
        self, query: Query, steps: list[Step] | None = None
    ) -> User | BackendResult | None:
        """Query the table. If the file was changed without SQLite, check it, and query it again."""
        checked: OpenFile | None = None
        while True:
            file = self._file
            if file is None:
                raise self._failure()
            was = file.state.signature
            try:
                user = await file.find(query, steps)
            except LookupFailed:
                if self._file is file:
                    raise
                continue  # the file was closed during the query: use its successor
            # If -wal or -shm is lost, found users are as of the last check. A miss is uncertain.
            is_sure = user is not None or not file.has_lost_sidecar()
            is_current = is_sure and file.is_unmodified() and file.state.signature == was
            if not is_current and (self._error is None or not file.is_intact()):
                if user is not None and self._file is file and file.is_intact():
                    self._begin_check()
                    return BackendResult(user, storable=False)
                await self.check()
                if file is not checked:
                    checked = file  # SQLite may have read half of a copy: repeat the query once
                    continue
            if self._file is file:
                break
        if user is None and self._error is not None:
            raise self._failure()
        return user

    explain = find  # with steps: the statement, its parameters and its rows

    async def close(self) -> None:
        """Stop the running queries, close every connection and end its thread."""
        # This prevents later checks. A file that they open would stay open.
        self._closed = True
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.wait([self._watch_task])
        if self._check_task is not None:
            await asyncio.gather(self._check_task, return_exceptions=True)
        await self._drop()

    async def check(self) -> None:
        """Check the file, and react to all changes that were made before this call.

        Concurrent callers share one check. The check continues if a caller is cancelled. Raises
        `Unavailable` if the backend is closed.
        """
        # A running check may have read the file's status before this call, so another is needed.
        if self._check_task is not None and not self._check_task.done():
            await asyncio.wait([self._check_task])
        check = self._begin_check()
        # Python 3.14 reports an error behind `asyncio.shield`, if the caller is cancelled.
        await asyncio.wait([check])
        check.result()
        if self._closed:
            raise Unavailable("the backend is closed")

    def _begin_check(self) -> asyncio.Task[None]:
        """Return the running check. If there is none, begin one."""
        if self._check_task is None or self._check_task.done():
            self._check_task = asyncio.create_task(self._run_check())
        return self._check_task

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.check_interval)
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - the next check may succeed
                text = "backend %s: checking the file failed:\n%s"
                _log.error(text, self.name, format_traceback(error))

    async def _run_check(self) -> None:
        if self._closed:
            return
        try:
            if self._file is None or not await self._is_current(self._file):
                new, old = await OpenFile.open(self.options), self._file
                self._adopt(new)
                self.notify_changed()
                if old is not None:
                    _log.info("backend %s: the file was replaced; opened the new one", self.name)
                    await old.close()
        except LookupFailed as error:
            if self._error is None or self._error.reason != error.reason:
                _log.error("backend %s: %s", self.name, error.reason)
            self._error = error
            if self._file is not None and not self._file.is_intact():
                await self._drop()  # the file was damaged in place
        else:
            if self._error is not None:
                self._error = None
                _log.info("backend %s: the file is usable again", self.name)

    async def _is_current(self, file: OpenFile) -> bool:
        """Return whether the open file is still in place, and was changed only through SQLite."""
        was = file.state
        signature = signature_of(self.options.path)
        if not signature.is_same_file(was.signature):
            if was.sidecars & sidecars_of(self.options.path.resolve()):
                raise Unavailable(
                    "the file was replaced, but the old -wal and -shm files remain, and SQLite "
                    "would apply them to the new file; remove both"
                )
            return False
        if file.has_lost_sidecar():
            if signature == was.signature:
                raise Unavailable(
                    "the -wal or -shm file was removed or replaced, and users may be lost with it; "
                    "when the database file has all users, touch it or restart the service"
                )
            await self._drop()  # new connections would share the old -shm file with the old ones
            return False
        try:
            now = await file.check()
            if now != was:
                is_written = now.data_version != was.data_version and now.schema == was.schema
                if not (is_written and now.signature.is_same_file(was.signature)):
                    return False
                self.notify_changed()
                if now.signature.size <= CHECKED_SIZE:
                    await file.compare_indexes()
                # After a copy, the change counter may become that of other, cached pages.
                for reader in file.readers:
                    await reader.connection.execute_fetchall("PRAGMA shrink_memory")
        except sqlite3.Error as error:
            return is_locked(error)  # while a writer is busy, leave it to the next check
        file.state = now
        return True

    def _adopt(self, file: OpenFile) -> None:
        self._file = file
        for warning in file.users.warnings:
            _log.warning("backend %s: %s", self.name, warning)

    async def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            for reader in file.readers:
                reader.stopping = True  # its queries raise `Unavailable`
            await file.close()

    def _failure(self) -> LookupFailed:
        """Return a copy of the current error, because callers change the errors that they catch."""
        return Unavailable("the file is not open") if self._error is None else self._error.copy()

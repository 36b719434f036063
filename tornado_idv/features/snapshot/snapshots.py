"""The snapshot of the cache: restored at the start, written regularly and at a stop.

After a crash, the snapshot is at most ``cache.snapshot_interval`` old. At a stop by signal, it is
written after the drain.

A purge removes the file immediately, because purged users must not return after a crash. A new file
follows within 30 s. If a lookup no longer finds a user of the file, the file is removed, too.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

from tornado_idv.admin.operations import OperationFailed, Record
from tornado_idv.admin.report import PartReport, Report, part_record
from tornado_idv.config.settings import Settings
from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.errors import format_traceback
from tornado_idv.features.snapshot.contents import (
    Snapshot,
    SnapshotIgnored,
    Texts,
    decode,
    encode,
    restore,
    to_file,
)
from tornado_idv.features.snapshot.options import SnapshotOptions
from tornado_idv.features.snapshot.snapshot_file import SnapshotFiles
from tornado_idv.lookup.directory import Directory
from tornado_idv.lookup.source_identity import sealed
from tornado_idv.options import as_type
from tornado_idv.service.directories import scope_of
from tornado_idv.service.part import Commit, Part, Running, background
from tornado_idv.web.json_body import encode_user

_log = logging.getLogger(__name__)
_SOON = 30.0
"""Maximum time until a removed snapshot is written again, in seconds."""
_READ_TIMEOUT = 5.0
_STOP_TIMEOUT = 3.0
"""Maximum seconds for the write at a stop, and for the removal of the files after a purge."""


class Snapshots(Part):
    """The part that keeps the snapshot in the file ``cache.snapshot``. ``clock`` returns Unix time.

    ``error`` is the current problem with the file, first seen at ``since``.
    """

    name = "cache snapshot"
    _directory: Directory

    def __init__(self, running: Running, clock: Callable[[], float] = time.time) -> None:
        self.error: str | None = None
        self.since = clock()
        self._clock = clock
        self._in_thread = DaemonThread("snapshot")
        self._options = SnapshotOptions()
        self._files: SnapshotFiles | None = None
        self._left = set[SnapshotFiles]()  # files that could not be removed
        self._changes = 0
        """Number of purges and reloads. If it changes during a write, the new file is outdated."""
        self._persisted: list[Texts] = [Texts()]
        """Identifiers of the users in the written file, and in the file being written. After a
        reload, the new directory uses them to detect that a user in a file was deleted."""
        self._removal: asyncio.Task[bool] | None = None
        self._found: list[Snapshot] = []
        self._use(running.settings)

    def report(self) -> PartReport | None:
        """Return the report about the file, or ``None`` if ``cache.snapshot`` is not set."""
        return PartReport(self.error, self.since) if self._files else None

    async def prepare(self, settings: Settings, directory: Directory) -> Commit:
        """Return a commit that calls `follow` with this directory."""
        return partial(self.follow, settings, directory)

    def follow(self, settings: Settings, directory: Directory) -> None:
        """Use this directory for snapshots. The first call restores the answers of the last run."""
        self._changes += 1
        self._directory = directory
        directory.cache.on_purge = partial(self._on_purge, directory)
        directory.cache.persisted = self._persisted
        self._use(settings)
        # Synchronous: a backend must not report a change between the reads of its revision and of
        # its answers. After a purge the file may have purged users: it is removed, not used.
        if self._found and directory.cache.purges:
            self._on_purge(directory)
        elif self._found:
            self._restore(settings, directory)
        self._found = []  # frees as much memory as the cache takes

    def _read(self, files: SnapshotFiles) -> Iterator[Snapshot]:
        """Yield the snapshots from the last run, one for each worker. Omit unusable ones."""
        try:
            files.acquire()
        except OSError as error:
            self._fail(files, "is not read", error)
            return
        for path in files.existing:
            try:
                snapshot = decode(files.read(path), sealed(self._scope), self._clock())
            except (SnapshotIgnored, OSError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                _log.warning("cache.snapshot: %s is ignored: %s", path, reason)
            else:
                for row in snapshot.rows:
                    self._persisted[0].add(row.texts)
                yield snapshot

    def _restore(self, settings: Settings, directory: Directory) -> None:
        render = partial(encode_user, identifiers=settings.make_identifiers())
        now, revisions = self._clock(), _revisions(directory)
        counts = [restore(each, directory.cache, now, revisions, render) for each in self._found]
        text = "cache.snapshot: restored %d of %d answers, served only while lookups fail"
        _log.info(text, sum(counts), sum(len(each.rows) for each in self._found))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Read the files. The first call of `follow` adds their answers to the cache."""
        if files := self._files:
            try:
                async with asyncio.timeout(_READ_TIMEOUT):
                    self._found = await self._in_thread(lambda: [*self._read(files)])
            except TimeoutError:
                _log.warning("cache.snapshot: %s is ignored: timed out while reading", files.own)
        yield

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write the snapshot regularly, and once more at a regular stop."""
        async with background(self._keep()):
            yield
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                # A purge during a write makes the file outdated: write it again.
                while not await self._write():
                    pass
        except TimeoutError:
            _log.warning("cache.snapshot: not written at the stop: timed out")

    async def purged(self) -> bool:
        """Wait up to 3 s for the removal of the files after the last purge."""
        if self._removal is not None:
            done, _ = await asyncio.wait([self._removal], timeout=_STOP_TIMEOUT)
            if not any(each.result() for each in done):
                raise OperationFailed("The cache snapshot cannot be removed; remove it by hand")
        return True

    async def _keep(self) -> None:
        clock = asyncio.get_running_loop().time
        written_at = clock()
        while True:
            interval = self._options.snapshot_interval
            # More often than the interval, because a purge may have removed the file.
            await asyncio.sleep(min(interval / 10, _SOON))
            if self._files is not None and (
                clock() >= written_at + interval
                or not await self._in_thread(os.path.lexists, self._files.own)
            ):
                written_at = clock()
                await self._write()

    async def _write(self) -> bool:
        """Write the file of this process. Return false after a purge or reload during the write."""
        files, directory, changes = self._files, self._directory, self._changes
        if files is None:
            return True
        if is_new := len(self._persisted) == 1:
            self._persisted.append(Texts())  # kept after a failed write: the file may be written
        before, persisted = self._persisted
        try:
            await self._in_thread(files.acquire)
            # Read before the answers. Answers stored meanwhile may have a later revision, and then
            # the next start only discards more than it must.
            revisions = _revisions(directory)
            scope = await self._in_thread(sealed, self._scope)
            header, parts = Snapshot(scope, self._clock(), revisions), []
            for part in encode(header, directory.cache, persisted):
                parts.append(part)
                await asyncio.sleep(0)  # lets requests run after each part
            if changes == self._changes:  # a purge from here on removes the written file
                await self._in_thread(lambda: files.write(to_file(parts)))
                self._persisted.remove(before)
                before.clear()
            elif is_new:
                self._persisted.pop().clear()
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed
            self._fail(files, "cannot be written", error)
            return True
        if self.error is not None:
            _log.info("cache.snapshot: %s: writing works again", files.own)
            self.error, self.since = None, self._clock()
        return changes == self._changes

    def _on_purge(self, directory: Directory) -> None:
        if directory is self._directory:
            self._changes += 1
            if files := {each for each in (self._files, *self._left) if each}:
                self._removal = asyncio.create_task(self._remove(*files))

    async def _remove(self, *several: SnapshotFiles) -> bool:
        """Remove files. Return whether all are removed. The next purge tries the others again."""
        self._left.update(several)
        for files in several:
            try:
                await self._in_thread(files.remove)
                self._left.discard(files)
            except OSError as error:
                self._fail(files, "cannot be deleted, so it may still contain purged users", error)
        if not self._left:
            self._persisted[0].clear()
        return self._left.isdisjoint(several)

    def _fail(self, files: SnapshotFiles, problem: str, error: Exception) -> None:
        text = f"{files.own}: {problem}: {getattr(error, 'strerror', '') or type(error).__name__}"
        if text != self.error:
            hint = "name a file in a folder writable by this user"
            details = "" if isinstance(error, OSError) else f"\n{format_traceback(error)}"
            _log.error("cache.snapshot: %s; %s%s", text, hint, details)
            self.error, self.since = text, self._clock()

    def _use(self, settings: Settings) -> None:
        before, self._options = self._options, as_type(settings.cache, SnapshotOptions)
        path = self._options.snapshot
        # Computed now: files with secrets may change, but the answers belong to this content.
        self._scope = scope_of(settings)
        if path != before.snapshot:
            if self._files is not None:  # no later purge would remove these files
                self._files.release()
                self._removal = asyncio.create_task(self._remove(self._files))
            self._files = SnapshotFiles(path) if path else None


def status(report: Report) -> Record:
    """Return the state of the snapshot, with the problem of its file."""
    return {"cache_snapshot": part_record(report.process.parts.get(Snapshots.name))}


def _revisions(directory: Directory) -> dict[str, str | None]:
    """Return the revisions of the backends in order. Stop at the first backend that fails."""
    revisions: dict[str, str | None] = {}
    for guard in directory.guards:
        try:
            revisions[guard.name] = guard.backend.revision
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            text = "backend %s: the property revision raised an exception:\n%s"
            _log.error(text, guard.name, format_traceback(error))
            break
    return revisions

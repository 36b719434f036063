"""The snapshot of the cache: who writes it when, and what is done with it at the start.

A process that ends by a signal writes it after the drain, any other is at most
``cache.snapshot_interval`` behind. A purge removes it at once, and it is soon written again: who
was purged must not be back after a crash.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

from tornado_idv.config.settings import Settings
from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.errors import format_traceback
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.lookup.cache import OF_SNAPSHOT
from tornado_idv.lookup.directory import Directory
from tornado_idv.lookup.snapshot import Snapshot, SnapshotIgnored, decode, encode, restore, to_file
from tornado_idv.service.snapshot_file import SnapshotFile
from tornado_idv.web.json_body import encode_user

_log = logging.getLogger(__name__)
_SOON = 30.0
"""Seconds in which a snapshot that was removed is written again, at most."""
_READ_TIMEOUT = 5.0
_STOP_TIMEOUT = 3.0
"""Seconds for which a stop waits for the file."""
_ATTEMPTS = 3
"""Of a stop, while purges go on."""
_MAX_ROW = 4096


def scope_of(settings: Settings, *, exclude_defaults: bool = False) -> str:
    """Return a digest of what decides which user answers a query, and for how long; no secrets.

    With ``exclude_defaults`` an option that a later version adds does not change it.
    """
    parts = [settings.identifiers, settings.cache, *settings.served]
    text = "\n".join(
        part.model_dump_json(
            exclude=set(OF_SNAPSHOT) if part is settings.cache else None,
            exclude_defaults=exclude_defaults,
        )
        for part in parts
    )
    return hashlib.sha256(text.encode()).hexdigest()


class Snapshots:
    """Keeps the snapshot that ``settings`` name; ``clock`` gives seconds of the wall clock.

    ``error`` is why it cannot be written, since ``since``.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.error: str | None = None
        self.since = clock()
        self._clock = clock
        self._in_thread = DaemonThread("snapshot")
        self._settings = settings
        self._directory: Directory | None = None
        self._file: SnapshotFile | None = None
        self._removal: asyncio.Future[None] | None = None
        self._name_file()

    @property
    def enabled(self) -> bool:
        """Return whether a file is configured."""
        return self._file is not None

    def follow(self, settings: Settings, directory: Directory) -> None:
        """Write the answers of this directory from now on."""
        if self._directory is not None:
            self._directory.cache.on_purge = lambda: None
        directory.cache.on_purge = self._on_purge
        self._settings, self._directory = settings, directory
        self._name_file()

    async def read(self) -> Snapshot | None:
        """Return the snapshot, if there is one that can be used."""
        if self._file is None:
            return None
        max_size = _MAX_ROW * (self._settings.cache.max_entries + 16)
        scope = scope_of(self._settings, exclude_defaults=True)

        def read(file: SnapshotFile) -> Snapshot | None:
            content = file.read(max_size)
            return None if content is None else decode(content, scope, self._clock())

        try:
            async with asyncio.timeout(_READ_TIMEOUT):
                snapshot: Snapshot | None = await self._in_thread(read, self._file)
        except (SnapshotIgnored, TimeoutError) as error:
            reason = str(error) or "it cannot be read in time"
            _log.warning("cache.snapshot: %s is ignored: %s", self._file.path, reason)
            return None
        return snapshot

    def restore(self, snapshot: Snapshot, directory: Directory) -> None:
        """Keep its answers in the cache of the directory, in case lookups fail."""
        identifiers = self._settings.make_identifiers()
        count = restore(
            snapshot,
            directory.cache,
            self._clock(),
            _revisions(directory),
            encode_user=partial(encode_user, identifiers=identifiers),
            accepts=identifiers.accepts,
        )
        text = "cache.snapshot: %d of %d answers are kept, to be served while lookups fail"
        _log.info(text, count, len(snapshot.rows))

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Write the snapshot while the context is open, and once more when it ends as it should."""
        stop = asyncio.Event()
        task = asyncio.create_task(self._keep(stop))
        try:
            yield
            stop.set()
            await asyncio.wait([task], timeout=_STOP_TIMEOUT)
            if not task.done():
                _log.warning("cache.snapshot: not written at the stop: that took too long")
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def removed(self) -> bool:
        """Return whether the file was removed after the last purge, within the time of a stop."""
        removal = self._removal
        if removal is not None:
            await asyncio.wait([removal], timeout=_STOP_TIMEOUT)
        return removal is None or (removal.done() and removal.exception() is None)

    async def _keep(self, stop: asyncio.Event) -> None:
        clock = asyncio.get_running_loop().time
        written_at, stopping = clock(), False
        while not stopping:
            interval = self._settings.cache.snapshot_interval
            with suppress(TimeoutError):
                async with asyncio.timeout(min(interval / 10, _SOON)):
                    await stop.wait()
            file, stopping = self._file, stop.is_set()
            if file is None:
                continue
            is_due = stopping or clock() >= written_at + interval
            if is_due or not await self._in_thread(os.path.lexists, file.path):
                written_at = clock()
                await self._try_to_write(file, _ATTEMPTS if stopping else 1)

    async def _try_to_write(self, file: SnapshotFile, attempts: int) -> None:
        try:
            while attempts > 0 and not await self._write(file):
                attempts -= 1
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed
            self._fail(file, "cannot be written", error)
        else:
            if self.error is not None:
                _log.info("cache.snapshot: %s can be written again", file.path)
                self.error, self.since = None, self._clock()

    async def _write(self, file: SnapshotFile) -> bool:
        """Write the file, if this process is the one that does; return false after a purge."""
        directory = self._directory
        if directory is None or not await self._in_thread(file.acquire):
            return True
        cache = directory.cache
        purges = cache.purges

        def is_current() -> bool:
            return directory is self._directory and cache.purges == purges

        scope = scope_of(self._settings, exclude_defaults=True)
        # Read before the answers: what is stored from now on may be of a later revision.
        header = Snapshot(scope, self._clock(), _revisions(directory))
        parts = []
        for part in encode(header, cache):
            parts.append(part)
            await asyncio.sleep(0)
        if is_current():
            await self._in_thread(file.write, to_file(parts), is_current)
        return is_current()

    def _on_purge(self) -> None:
        file = self._file
        if file is not None:
            self._removal = self._in_thread(file.remove)
            self._removal.add_done_callback(partial(self._on_removed, file))

    def _on_removed(self, file: SnapshotFile, removal: asyncio.Future[None]) -> None:
        error = removal.exception()
        if error is not None:
            self._fail(file, "cannot be removed after a purge", error)

    def _fail(self, file: SnapshotFile, problem: str, error: BaseException) -> None:
        reason = getattr(error, "strerror", None) or type(error).__name__
        text = f"{file.path}: {problem}: {reason}"
        if text != self.error:
            hint = "name another, in a folder that this user can write"
            details = "" if isinstance(error, OSError) else f"\n{format_traceback(error)}"
            _log.error("cache.snapshot: %s; %s%s", text, hint, details)
            self.error, self.since = text, self._clock()

    def _name_file(self) -> None:
        path = self._settings.cache.snapshot
        if self._file is not None and self._file.path != path:
            self._file.release()
            self._file = None
        if path is not None and self._file is None:
            self._file = SnapshotFile(path)


def _revisions(directory: Directory) -> dict[str, str | None]:
    return {guard.name: _revision(guard.backend) for guard in directory.guards}


def _revision(backend: AnyBackend) -> str | None:
    try:
        return backend.revision
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        text = "backend %s: revision failed:\n%s"
        _log.error(text, backend.name, format_traceback(error))
        return secrets.token_hex()  # another one at the next start: its answers are dropped

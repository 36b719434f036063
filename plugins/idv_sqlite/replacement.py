"""A new file that is written beside another one and renamed over it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Self

from tornado_idv import StartError, Unavailable

_BUSY_TIMEOUT = 10.0
"""Seconds to wait for another writer."""

_NOT_DURABLE = (
    "the users were changed, and whether that outlasts a crash of the machine could not be "
    "determined; import them again"
)


class Replacement:
    """A copy of the database at ``path``, or an empty file, for one writer.

    Other writers of the old file are locked out until the copy has its name; readers are not.
    Without `commit`, or if the process ends, the old file stays as it is. Raises `StartError`.
    """

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f".{target.name}.import")
        self._target = target
        self._has_its_name = False
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise StartError(f"{self.path}: cannot be written: {error.strerror}") from None

    @classmethod
    @contextmanager
    def of(cls, target: Path, *, is_new: bool) -> Iterator[Self]:
        """Yield the replacement; at the end, it is discarded unless it was committed."""
        replacement = cls(target)
        with ExitStack() as stack:
            stack.callback(os.close, replacement._descriptor)
            stack.callback(replacement._discard)
            if not is_new:
                replacement._copy(stack)
            elif not is_missing(target):
                raise StartError(
                    f"{target}: another writer created it during the import, which changed "
                    "nothing; import again"
                )
            yield replacement

    def commit(self) -> None:
        """Make the file durable, and give it its name.

        Raises `StartError` if it does not get it, and `Unavailable` for an error after that.
        """
        try:
            os.fsync(self._descriptor)
            self.path.replace(self._target)
            self._has_its_name = True
            folder = os.open(self._target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            if self._has_its_name:
                raise Unavailable(f"{error.strerror}; {_NOT_DURABLE}") from None
            raise StartError(f"{self._target}: cannot be replaced: {error.strerror}") from None

    def _discard(self) -> None:
        if not self._has_its_name:
            self.path.unlink(missing_ok=True)

    def _open(self) -> int:
        """Return the locked file, empty: one that an earlier process left is used again."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another import may have renamed it.
            is_locked = os.path.samestat(os.fstat(descriptor), self.path.stat())
        except (BlockingIOError, FileNotFoundError):
            is_locked = False
        if not is_locked:
            os.close(descriptor)
            raise StartError(f"{self._target}: another import is running")
        os.truncate(descriptor, 0)
        return descriptor

    def _copy(self, stack: ExitStack) -> None:
        lock, source = (
            stack.enter_context(
                closing(sqlite3.connect(self._target, isolation_level=None, timeout=_BUSY_TIMEOUT))
            )
            for _ in range(2)
        )
        # By a connection of its own: SQLite does not copy from one that has begun to write.
        lock.execute("BEGIN IMMEDIATE")
        status = self._target.stat()
        try:
            os.fchown(self._descriptor, status.st_uid, status.st_gid)
        except OSError:
            raise StartError(
                f"{self._target}: the new file cannot be given to the owner of this one; run the "
                "import as that user"
            ) from None
        os.fchmod(self._descriptor, status.st_mode & 0o7777)
        with closing(sqlite3.connect(self.path)) as copy:
            copy.execute("PRAGMA journal_mode = OFF")
            copy.execute("PRAGMA synchronous = OFF")
            source.backup(copy)


def is_missing(path: Path) -> bool:
    """Return whether there is no database, but at most an empty file."""
    return not path.exists() or path.stat().st_size == 0

"""The file of a snapshot of the cache: written as a whole, by one process, and removed.

Only its owner can read it. Nothing but a snapshot is ever replaced or removed.
All functions may block.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tornado_idv.lookup.snapshot import MARK, SnapshotIgnored

_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class SnapshotFile:
    """The file at ``path``, and the lock of those who write it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._draft = path.with_name(f".{path.name}.new")
        self._lock: int | None = None

    def read(self, max_size: int) -> bytes | None:
        """Return the content, ``None`` without a file; raises `SnapshotIgnored`."""
        try:
            with _opened(self.path) as file:
                status = os.fstat(file.fileno())
                if status.st_uid != os.geteuid() or status.st_mode & _WRITTEN_BY_OTHERS:
                    raise SnapshotIgnored("another user may have written it")
                if status.st_size > max_size:
                    raise SnapshotIgnored("too large")
                return file.read(max_size)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SnapshotIgnored(str(error.strerror)) from None

    def acquire(self) -> bool:
        """Return whether this process is the one that writes; raises `OSError`."""
        if self._lock is None:
            path = self.path.with_name(f".{self.path.name}.lock")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._lock = descriptor
        return True

    def release(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write(self, content: Iterable[bytes], is_current: Callable[[], bool]) -> None:
        """Replace the file, unless the content is not current any more; raises `OSError`."""
        with suppress(FileNotFoundError):
            if not self._is_ours():
                raise OSError(errno.EEXIST, "the file there is not a snapshot", str(self.path))
        draft = self._draft
        draft.unlink(missing_ok=True)  # of a process that was killed
        try:
            with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.writelines(content)
                file.flush()
                os.fsync(file.fileno())
            if is_current():
                draft.replace(self.path)
        finally:
            draft.unlink(missing_ok=True)
        if not is_current():  # the purge may have called `remove` before that
            self.remove()

    def remove(self) -> None:
        """Remove the file, if it is a snapshot; raises `OSError`."""
        if self._lock is not None:
            self._draft.unlink(missing_ok=True)
        with suppress(FileNotFoundError, _NotAFileError):
            if self._is_ours():
                self.path.unlink()

    def _is_ours(self) -> bool:
        with _opened(self.path) as file:
            return file.read(len(MARK)) == MARK


class _NotAFileError(OSError):
    """There is a link, a folder or a pipe."""


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file, without waiting for a writer of anything else; raises `OSError`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _NotAFileError(errno.ELOOP, "a symbolic link", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _NotAFileError(errno.EINVAL, "not a regular file", str(path))
    with os.fdopen(descriptor, "rb") as file:
        yield file

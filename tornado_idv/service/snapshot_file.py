"""The file of a snapshot of the cache: written as a whole, by one process, and removed.

Only its owner can read it. Nothing but a snapshot is ever replaced or removed.
All functions may block, and raise `OSError`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from tornado_idv.files import opened_file
from tornado_idv.lookup.snapshot import MARK, SnapshotIgnored


class SnapshotFile:
    """The file at ``path``, and the lock of those who write it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def read(self) -> bytes:
        """Return the content, of another file only its beginning; raises `SnapshotIgnored`."""
        with opened_file(self.path) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise SnapshotIgnored("another user may have written it")
            beginning = file.read(len(MARK))
            return beginning + file.read() if beginning == MARK else beginning

    def acquire(self) -> bool:
        """Return whether this process is the one that writes."""
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

    def write(self, content: bytes) -> None:
        """Replace the file."""
        if os.path.lexists(self.path) and not self._is_snapshot():
            raise OSError(errno.EEXIST, "the file there is not a snapshot", str(self.path))
        draft = self.path.with_name(f".{self.path.name}.new")
        draft.unlink(missing_ok=True)  # of a process that was killed
        try:
            with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)
        finally:
            draft.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the file, if it is a snapshot."""
        if self._is_snapshot():
            self.path.unlink(missing_ok=True)

    def _is_snapshot(self) -> bool:
        if not self.path.is_file():
            return False
        with self.path.open("rb") as file:
            return file.read(len(MARK)) == MARK

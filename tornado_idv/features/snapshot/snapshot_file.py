"""The files of a snapshot of the cache, one for each worker: written as a whole, and removed.

They are made for their owner alone. Nothing but a snapshot is ever replaced or removed.
All functions may block, and raise `OSError`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from pathlib import Path

from tornado_idv.features.snapshot.contents import MARK, SnapshotIgnored
from tornado_idv.files import opened_file

_MAX_WRITERS = 64
_SERVICE = secrets.token_bytes(16)
"""Identifies this service: its workers are forked with it."""


class SnapshotFiles:
    """The file at ``path``, or with a number after its name, and the lock of who writes it."""

    def __init__(self, path: Path) -> None:
        self.own = path
        """The file that this process writes, once it has the lock."""
        self._paths = [path, *(Path(f"{path}.{number}") for number in range(1, _MAX_WRITERS))]
        self._lock: int | None = None

    @property
    def existing(self) -> list[Path]:
        """The files of all workers, or what is in their place."""
        return [each for each in self._paths if os.path.lexists(each)]

    def read(self, path: Path) -> bytes:
        """Return the content, of another file only its beginning; raises `SnapshotIgnored`."""
        with opened_file(path) as file:
            status = os.fstat(file.fileno())
            # Kubernetes gives each file of a volume with `fsGroup` to this group of ours.
            ours = status.st_gid in {os.getegid(), *os.getgroups()}
            if status.st_uid != os.geteuid() or status.st_mode & (0o002 if ours else 0o022):
                raise SnapshotIgnored("another user may have written it")
            beginning = file.read(len(MARK))
            return beginning + file.read() if beginning == MARK else beginning

    def acquire(self) -> None:
        """Have a file that no other worker writes; fails if another service writes one.

        What that service purges, and what is purged here, would be back after a restart.
        """
        for path in self._paths if self._lock is None else ():
            lock = path.with_name(f".{path.name}.lock")
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(descriptor, len(_SERVICE), 0)
                os.close(descriptor)
                if owner != _SERVICE:
                    raise OSError(errno.EBUSY, "another service writes it", str(path)) from None
            else:
                os.pwrite(descriptor, _SERVICE, 0)
                self._lock, self.own = descriptor, path
                return

    def release(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write(self, content: bytes) -> None:
        """Replace the file of this process."""
        path = self.own
        if os.path.lexists(path) and not _is_snapshot(path):
            raise OSError(errno.EEXIST, "the file there is not a snapshot", str(path))
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)  # of a process that was killed
        try:
            with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the files of all workers that are snapshots."""
        for path in self.existing:
            if _is_snapshot(path):
                path.unlink(missing_ok=True)


def _is_snapshot(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MARK)) == MARK
    except FileNotFoundError:  # another worker has removed it
        return False

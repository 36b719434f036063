"""The files of a snapshot of the cache, one for each worker.

Only the owner of a file can read it. A file that is not a snapshot is not replaced or removed.
All functions may block, and raise `OSError`.
"""

import errno
import fcntl
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tornado_idv.features.snapshot.contents import MARK, SnapshotIgnored
from tornado_idv.files import opened_file

_MAX_WRITERS = 64
_SERVICE = secrets.token_bytes(16)
"""A random id of this service, written to its lock files. All workers have the same id."""


class SnapshotFiles:
    """The files ``path``, ``path.1``, ``path.2``… Each worker locks the file that it writes."""

    def __init__(self, path: Path) -> None:
        self.own = path
        """The path of the file that this process writes, after `acquire` has locked the file."""
        self._paths = [path, *(Path(f"{path}.{number}") for number in range(1, _MAX_WRITERS))]
        self._lock: int | None = None

    @property
    def existing(self) -> list[Path]:
        """The paths of all existing files of workers, even of files that are not snapshots."""
        return [each for each in self._paths if os.path.lexists(each)]

    def read(self, path: Path) -> bytes:
        """Return the content of a snapshot, or only the first bytes of any other file.

        Raises `SnapshotIgnored` if another user may have written the file.
        """
        with opened_file(path) as file:
            status = os.fstat(file.fileno())
            # With `fsGroup`, Kubernetes makes each file of the volume writable for our group.
            ours = status.st_gid in {os.getegid(), *os.getgroups()}
            if status.st_uid != os.geteuid() or status.st_mode & (0o002 if ours else 0o022):
                raise SnapshotIgnored("another user may have written it")
            beginning = file.read(len(MARK))
            return beginning + file.read() if beginning == MARK else beginning

    def acquire(self) -> None:
        """Lock a free file for this process. Raises `OSError` if another service has locked a file.

        Two services must not share the files. Each start restores all files. So a service would
        restore answers that it has purged, from the files of the other service.
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
        """Unlock the file of this process."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write(self, content: Iterable[bytes]) -> None:
        """Replace the file of this process. ``content`` has the parts of the new file."""
        path = self.own
        if os.path.lexists(path) and not _is_snapshot(path):
            raise OSError(errno.EEXIST, "the existing file is not a snapshot", str(path))
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)  # left by a killed process
        try:
            with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.writelines(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the snapshots of all workers."""
        for path in self.existing:
            with suppress(FileNotFoundError):  # another worker has removed it
                if _is_snapshot(path):
                    path.unlink()


def _is_snapshot(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK

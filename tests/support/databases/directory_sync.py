"""A disk that fails when a file or a directory is synced."""

import errno
import os
import stat

import pytest


def fail_sync(monkeypatch: pytest.MonkeyPatch, *, of_directories: bool) -> None:
    """Make `os.fsync` fail with EIO: of files, or of directories after a file has its name."""
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == of_directories:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)

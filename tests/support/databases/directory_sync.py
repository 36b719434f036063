"""A disk that fails when a directory is synced, after a new file has its name."""

from __future__ import annotations

import errno
import os
import stat

import pytest


def fail_directory_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `os.fsync` of a directory fail with EIO."""
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)

"""Tests of missing permissions, also where the tests run as root."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unprivileged() -> Iterator[None]:
    """Run the block as user 65534, whose permissions are checked, unless already unprivileged."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@contextmanager
def public_directory() -> Iterator[Path]:
    """A directory that every user may read; pytest's own is for its user alone."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path
        path.chmod(0o755)

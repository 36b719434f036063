"""Functions for files of databases, without the libraries that lookups need."""

import os
from pathlib import Path


def uri_of(path: Path, *, read_only: bool = False) -> str:
    """Return the URI of an existing file. For a plain path, SQLite would create a missing file."""
    return f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"


def sync(path: Path) -> None:
    """Flush a file, or the names of the files in a folder, to the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

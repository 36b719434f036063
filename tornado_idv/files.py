"""Reads small files that an operator names, without blocking on what is not a file.

Opening a FIFO waits for its writer, and a device such as ``/dev/zero`` has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_SIZE = 1024**2
"""Bytes: far more than a configuration, a secret or a certificate needs."""


def read_file(path: Path) -> bytes:
    """Return the content of a regular file of at most `MAX_SIZE` bytes.

    Raises `OSError`, whose ``strerror`` is a phrase for the operator, for anything else.
    """
    with open(path, "rb", opener=_open_nonblocking) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = file.read(MAX_SIZE + 1)
    if len(content) > MAX_SIZE:
        raise OSError(errno.EFBIG, "larger than 1 MiB", str(path))
    return content


def read_text(path: Path) -> str:
    """Return the text of such a file, without the line break at its end.

    Raises `OSError` as `read_file` does, and `UnicodeDecodeError` unless it is UTF-8.
    """
    return read_file(path).decode("utf-8").replace("\r\n", "\n").removesuffix("\n")


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)

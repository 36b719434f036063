"""Small files that an operator names: reads them, notices their changes, follows a secret.

Only regular files are read. Opening a FIFO would wait for its writer, and a device such as
``/dev/zero`` has no end.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from ssl import SSLContext
from typing import BinaryIO, ClassVar, NamedTuple, NoReturn

from pydantic import SecretStr

from tornado_idv.errors import StartError

_log = logging.getLogger(__name__)
MAX_SIZE = 1024**2
"""Bytes: far more than a configuration, a secret or a certificate needs."""


@contextmanager
def opened_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading.

    Raises `OSError` for anything else, with a phrase for the operator in ``strerror``.
    """
    added = os.O_NONBLOCK | os.O_NOCTTY
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | added)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file


def read_file(path: Path) -> bytes:
    """Return the content of a regular file of at most `MAX_SIZE` bytes; raises as `opened_file`."""
    with opened_file(path) as file:
        content = file.read(MAX_SIZE + 1)
    if len(content) > MAX_SIZE:
        raise OSError(errno.EFBIG, "larger than 1 MiB", str(path))
    return content


def require_file(path: Path) -> bytes:
    """Return the content as `read_file` does; raises `StartError` with the name of the file."""
    try:
        return read_file(path)
    except OSError as error:
        raise StartError(f"{path}: cannot be read: {error.strerror}") from None


def load_certificate(context: SSLContext, cert_file: Path, key_file: Path | None = None) -> None:
    """Load a certificate and its key into ``context``. ``cert_file`` may contain both.

    Raises `StartError` for files without them, and for an encrypted key.
    """
    files = [cert_file] if key_file is None else [cert_file, key_file]
    for file in files:
        require_file(file)  # the errors of the TLS library do not name the file
    try:
        context.load_cert_chain(cert_file, key_file, _refuse_password)
    except _EncryptedKeyError:
        raise StartError(f"{files[-1]}: the key is encrypted; decrypt it") from None
    except (OSError, ValueError) as error:
        is_mismatch = getattr(error, "reason", None) == "KEY_VALUES_MISMATCH"
        reason = "the key does not match" if is_mismatch else "not a certificate and key in PEM"
        names = " and ".join(map(str, files))
        raise StartError(f"{names} cannot be used for TLS: {reason}") from None


class _EncryptedKeyError(Exception):
    """The private key is protected by a password."""


def _refuse_password() -> NoReturn:
    """Keep the TLS library from asking for the password on the terminal."""
    raise _EncryptedKeyError


def read_text(path: Path) -> str:
    """Return the content of a file as text, without the line break at its end.

    Raises `OSError` as `read_file` does, and `UnicodeDecodeError` unless it is UTF-8.
    """
    return read_file(path).decode("utf-8").replace("\r\n", "\n").removesuffix("\n")


class FileSignature(NamedTuple):
    """The part of a file's status that changes when the file is written or replaced.

    Times are in nanoseconds. ``ctime_ns`` also changes with new permissions, and differs for a copy
    with the same size and modification time. If that matters, compare the content.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileSignature:
        """Return the signature of the file at the path; raises `OSError`."""
        status = os.stat(path)  # noqa: PTH116 - a third of the time of Path.stat, per lookup
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )

    @classmethod
    def find(cls, path: Path) -> FileSignature | None:
        """Return the signature as `of` does; ``None`` if the file is missing or out of reach."""
        try:
            return cls.of(path)
        except OSError:
            return None

    def is_same_file(self, other: FileSignature) -> bool:
        """Return whether both are of one file, whatever was written to it in between."""
        # Inode numbers alone repeat from one file system to the next.
        return self[:2] == other[:2]


class FileSecret(SecretStr):
    """A secret that follows its file.

    A missing, empty or binary file does not change the secret: a write may be in progress. Nor does
    a text with another ``fixed_part``, before a reload. The file is checked at most once a second;
    ``timer`` returns seconds.
    """

    check_interval: ClassVar[float] = 1.0

    def __init__(self, text: str, path: Path, timer: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text)
        self._text = text
        self._path = path
        self._timer = timer
        self._checked_at = timer()
        self._signature: FileSignature | None = None
        self.fixed_part: Callable[[str], object] = lambda _: None

    def __eq__(self, other: object) -> bool:
        """Return whether both follow the same file, whatever each has read from it."""
        return isinstance(other, FileSecret) and self._path == other._path

    def __hash__(self) -> int:
        return hash(self._path)

    def get_secret_value(self) -> str:
        now = self._timer()
        if now - self._checked_at >= self.check_interval:
            self._checked_at = now
            with suppress(OSError, ValueError):
                signature = FileSignature.of(self._path)
                if signature != self._signature and (text := read_text(self._path)):
                    self._signature = signature
                    if self.fixed_part(text) == self.fixed_part(self._text):
                        self._text = text
                    else:
                        _log.warning("%s: the file names another source; reload", self._path)
        return self._text

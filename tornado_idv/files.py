"""Reading of small files named by an operator, and detection of their changes.

Only regular files are read. To open a FIFO would wait for its writer, and a device such as
``/dev/zero`` has no end.
"""

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
"""Maximum size of a file in bytes. Configurations, secrets and certificates are far smaller."""


@contextmanager
def opened_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading.

    Raises `OSError` if the path is not a readable regular file. The ``strerror`` of the error is a
    text for the operator.
    """
    added = os.O_NONBLOCK | os.O_NOCTTY
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | added)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file


def read_file(path: Path) -> bytes:
    """Return the content of a regular file. Raises `OSError`, also above `MAX_SIZE` bytes."""
    with opened_file(path) as file:
        content = file.read(MAX_SIZE + 1)
    if len(content) > MAX_SIZE:
        raise OSError(errno.EFBIG, "larger than 1 MiB", str(path))
    return content


def require_file(path: Path) -> bytes:
    """Return the content of a regular file. Raises `StartError` with the name of the file."""
    try:
        return read_file(path)
    except OSError as error:
        raise StartError(f"{path}: cannot be read: {error.strerror}") from None


def load_certificate(context: SSLContext, cert_file: Path, key_file: Path | None = None) -> None:
    """Load a certificate and its private key into ``context``. ``cert_file`` may contain both.

    Raises `StartError` if the files do not contain both, or if the key is encrypted.
    """
    files = [cert_file] if key_file is None else [cert_file, key_file]

    def refuse_password() -> NoReturn:  # instead of a prompt of the TLS library on the terminal
        raise StartError(f"{files[-1]}: the key is encrypted; decrypt it")

    for file in files:
        require_file(file)  # the errors of the TLS library do not name the file
    try:
        context.load_cert_chain(cert_file, key_file, refuse_password)
    except OSError as error:
        is_mismatch = getattr(error, "reason", None) == "KEY_VALUES_MISMATCH"
        reason = "the key does not match" if is_mismatch else "not a certificate and key in PEM"
        names = " and ".join(map(str, files))
        raise StartError(f"{names} cannot be used for TLS: {reason}") from None


def read_text(path: Path) -> str:
    """Return the content of a text file without its final line break.

    Raises `OSError` as `read_file` does, and `UnicodeDecodeError` if the file is not UTF-8.
    """
    return read_file(path).decode("utf-8").replace("\r\n", "\n").removesuffix("\n")


class FileSignature(NamedTuple):
    """The fields of a file's status that change when the file is written or replaced.

    Times are in nanoseconds. A different signature does not prove different content: ``ctime_ns``
    also changes with the permissions, and differs for a copy of the file.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileSignature":
        """Return the signature of the file at this path. Raises `OSError`."""
        status = os.stat(path)  # noqa: PTH116 - takes a third of the time of Path.stat
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )

    @classmethod
    def find(cls, path: Path) -> "FileSignature | None":
        """Return the signature of the file at this path, or ``None`` for an inaccessible file."""
        with suppress(OSError):
            return cls.of(path)
        return None

    def is_same_file(self, other: "FileSignature") -> bool:
        """Return whether both signatures are from one file, even if its content has changed."""
        # Two file systems may use the same inode number.
        return self[:2] == other[:2]


class FileSecret(SecretStr):
    """A secret that is read from a file, and follows changes of the file.

    The file is checked at most once per second. If the file is missing, empty or binary, the secret
    does not change, because a write may be in progress. If `fixed_part` of the text changes, such
    as the host in a URL, the secret changes only after a reload. ``timer`` returns seconds.
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
        """Return whether both secrets follow the same file. Their current texts may differ."""
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
                        _log.warning(
                            "%s: the URL has changed, not only its password; reload to use it",
                            self._path,
                        )
        return self._text

"""Opening of input files, and atomic replacement of output files."""

import errno
import io
import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import IO, TypeVar, cast

import click

from tornado_idv.errors import StartError

T = TypeVar("T")
DELIMITERS = {",": ",", ";": ";", "|": "|", "tab": "\t", "\t": "\t"}
"""Separators of CSV fields, by their names on the command line."""
delimiter_option = click.option(
    "--delimiter",
    metavar="CHARACTER",
    default=",",
    type=click.Choice(list(DELIMITERS)),
    callback=lambda _context, _parameter, name: DELIMITERS[name],
    help="Separator of CSV fields: , or ; or | or tab.",
)


def open_source(file: str, encoding: str = "utf-8") -> IO[str]:
    """Open a file, or standard input for ``-``.

    Line breaks are not translated, and invalid bytes become surrogates. Raises `StartError`.
    """
    # utf-8-sig skips a byte order mark.
    encoding = "utf-8-sig" if encoding.lower() in {"utf-8", "utf8"} else encoding
    try:
        binary = cast(io.BufferedReader, click.open_file(file, "rb"))
        return io.TextIOWrapper(binary, encoding, errors="surrogateescape", newline="")
    except OSError as error:
        raise StartError(f"{file}: cannot be read: {error.strerror}") from None


@contextmanager
def replaced_file(path: Path, *, keeps_rights: bool = False) -> Iterator[IO[str]]:
    """Open a temporary file in the folder of ``path``. On exit, rename it to ``path``.

    Only its owner can read the file, because it has card numbers or a key. With ``keeps_rights``,
    it gets the permissions of the old file. If ``path`` is a symbolic link, the target of the link
    is replaced. A device, a pipe or a SQLite database is an error.
    """
    try:
        target = Path(os.path.realpath(path))
        _require_regular(target)
        descriptor, beside = tempfile.mkstemp(prefix=".export-", dir=target.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if keeps_rights:
                _keep_rights(target, beside)
            Path(beside).replace(target)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StartError(f"{path}: cannot be written: {error.strerror}") from None


def _keep_rights(target: Path, beside: str) -> None:
    """Copy owner, group and mode of the old file. If the groups differ, omit the group's rights."""
    with suppress(FileNotFoundError):
        old = target.stat()
        with suppress(PermissionError):
            os.chown(beside, -1, old.st_gid)
            os.chown(beside, old.st_uid, -1)
        rights = 0o777 if Path(beside).stat().st_gid == old.st_gid else 0o707
        Path(beside).chmod(old.st_mode & rights)


def _require_regular(path: Path) -> None:
    """Raise `OSError` for a device, a pipe, a folder or a database. A rename must replace none."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file; name another file", str(path))
    with suppress(FileNotFoundError, PermissionError), path.open("rb") as file:
        if file.read(16) == b"SQLite format 3\0":  # such as the table or key store to export
            raise OSError(errno.EINVAL, "a SQLite database; name another file", str(path))


def rows_with_progress(rows: Iterator[T], source: IO[str], label: str) -> Generator[T]:
    """Yield the rows. A terminal shows a progress bar, or the number of rows read from a pipe."""
    hidden = not sys.stderr.isatty()
    size = 0 if hidden else os.fstat(source.fileno()).st_size  # 0 for a pipe
    with click.progressbar(
        repeat(None), size or None, label, show_pos=not size, file=sys.stderr, hidden=hidden
    ) as bar:
        for number, row in enumerate(rows, start=1):
            yield row
            if number % 200 == 0:
                done = os.lseek(source.fileno(), 0, os.SEEK_CUR) if size else number
                bar.update(done - bar.pos)

"""What ``tornado-idv users import`` reads and reports: the file, its rejected rows, progress."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TextIO

from tornado_idv.cli.users_stores import RefusedError
from tornado_idv.errors import StartError

Advance = Callable[[int], None]
"""Is called with the number of rows that were read."""


@dataclass
class RejectedRows:
    """The file of rejected rows: a line number and a reason each, and no value.

    It is created with the first row, and one of an earlier import is deleted. With ``strict`` the
    import is refused because of any row, after all have been read. ``valid`` is the number of
    users that were read and not rejected.
    """

    source: str
    path: Path
    strict: bool
    count: int = 0
    valid: int = 0
    _file: IO[str] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Delete the file of an earlier import."""
        with self._located():
            self.path.unlink(missing_ok=True)

    def add(self, line: int, reason: str) -> None:
        """Write a row; raises `StartError`."""
        with self._located():
            if self._file is None:
                self._file = self.path.open("w", encoding="utf-8")
            self._file.write(f"{self.source}:{line}: {reason}\n")
        self.count += 1

    def add_all(self, rows: Iterable[tuple[int, str]]) -> None:
        """Write rows that were valid, as the last ones, and refuse the import where `check` does.

        The file is complete then: what cannot be written is an error before users are changed.
        """
        for row in sorted(rows):
            self.add(*row)
            self.valid -= 1
        self.close()
        self.check()

    def check(self) -> None:
        """Raise `RefusedError` for rejected rows with ``--strict``, and where no user is left.

        To replace all users by none is no import, but a wrong or truncated file.
        """
        if self.strict and self.count:
            raise RefusedError(
                f"{self.source}: {self.count} rows are rejected, see {self.path}; "
                "nothing was changed"
            )
        if not self.valid:
            more = f"; see {self.path}" if self.count else ""
            raise RefusedError(f"{self.source}: has no valid user{more}; nothing was changed")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with self._located():
                self._file.close()

    @contextmanager
    def _located(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StartError(f"{self.path}: cannot be written: {error.strerror}") from None


def open_source(file: str, *, stdin: IO[bytes]) -> TextIO:
    """Open a file, or standard input for ``-``; invalid UTF-8 becomes surrogates.

    Raises `StartError`.
    """
    try:
        if file == "-":
            return io.TextIOWrapper(stdin, "utf-8-sig", "surrogateescape", newline="")
        return Path(file).open(encoding="utf-8-sig", errors="surrogateescape", newline="")
    except OSError as error:
        raise StartError(f"{file}: cannot be read: {error.strerror}") from None


@contextmanager
def progress(source: TextIO, *, is_file: bool) -> Iterator[Advance]:
    """Show the rows, their rate and the time left on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    # Imported here since it takes 50 ms, and only a terminal needs it.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    size = os.fstat(source.fileno()).st_size if is_file else None
    columns = (
        BarColumn(),
        TextColumn("{task.fields[rows]:,} rows, {task.fields[rate]:,.0f}/s"),
        TimeRemainingColumn(),
    )
    started = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=size, rows=0, rate=0.0)

        def advance(rows: int) -> None:
            rate = rows / max(time.monotonic() - started, 1e-3)
            done = os.lseek(source.fileno(), 0, os.SEEK_CUR) if size else 0
            bar.update(task, completed=done, rows=rows, rate=rate)

        yield advance

"""Input and report of ``tornado-idv users import``: the file, its valid and rejected rows."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import repeat
from pathlib import Path
from typing import IO, Self

import click

from tornado_idv.cli.common import RefusedError
from tornado_idv.cli.users.formats import FIELDS, Fields, Row
from tornado_idv.errors import InvalidFormat, StartError
from tornado_idv.identifiers import (
    PLAN_FORMAT,
    PROFILE_URL_FORMAT,
    Identifiers,
    is_plan,
    is_profile_url,
)
from tornado_idv.interfaces.user_store import NumberedUser
from tornado_idv.model import User

_EXPONENT = re.compile(r"\d([.,]\d+)?[eE]\+?\d+")


class RejectedRows:
    """The file of rejected rows: a line number and a reason each, and no value.

    It is created with the first row, and one of an earlier import is deleted. If more than
    ``max_percent`` of the rows are rejected, the import is refused after all have been read, and
    without ``allow_shrink`` if fewer than 80 % of the stored users would stay. ``valid`` is the
    number of users that were read and not rejected.
    """

    def __init__(self, file: str, max_percent: Decimal, *, allow_shrink: bool) -> None:
        self.source = "standard input" if file == "-" else file
        self.path = Path("stdin.rejected" if file == "-" else f"{file}.rejected")
        self.max_percent = max_percent
        self.allow_shrink = allow_shrink
        self.count = self.valid = 0
        self._first = ""
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        """Delete the file of an earlier import."""
        with self._located():
            self.path.unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, line: int, reason: str) -> None:
        """Write a row; raises `StartError`."""
        with self._located():
            if self._file is None:
                self._file = self.path.open("w", encoding="utf-8")
                self._first = f"; the first for line {line}: {reason}; see {self.path}"
            self._file.write(f"{self.source}:{line}: {reason}\n")
        self.count += 1

    def review(self, rows: Iterable[tuple[int, str]], removed: int, stored: int) -> None:
        """Write rows that were valid, as the last ones; refuse an import that should not be made.

        The file is complete then: what cannot be written is an error before users are changed.
        """
        for row in sorted(rows):
            self.add(*row)
            self.valid -= 1
        self.close()
        self.check()
        if removed * 5 > stored and not self.allow_shrink:
            raise RefusedError(
                f"{self.source}: {removed} of {stored} users would be removed, and only "
                f"{stored - removed} stay; nothing was changed; if that is right, add "
                "--allow-shrink, or --merge to keep them"
            )

    def check(self) -> None:
        """Raise `RefusedError` where too many rows are rejected, or no user is left.

        To replace all users by none is no import, but a wrong or truncated file.
        """
        rows = self.valid + self.count
        if self.count * 100 > self.max_percent * rows:
            problem = f"{self.count} of {rows} rows are rejected, more than {self.max_percent}%"
        elif not self.valid:
            problem = "has no valid user"
        else:
            return
        raise RefusedError(f"{self.source}: {problem}{self._first}; nothing was changed")

    def close(self) -> None:
        if self._file is not None:
            with self._located():
                self._file.close()

    @contextmanager
    def _located(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StartError(f"{self.path}: cannot be written: {error.strerror}") from None


def open_source(file: str) -> IO[str]:
    """Open a file, or standard input for ``-``; invalid UTF-8 becomes surrogates.

    Raises `StartError`.
    """
    try:
        return click.open_file(file, encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise StartError(f"{file}: cannot be read: {error.strerror}") from None


def with_progress(rows: Iterator[Row], source: IO[str]) -> Generator[Row]:
    """Yield the rows; on a terminal show their number and rate, and the time left of a file."""
    if not sys.stderr.isatty():
        yield from rows
        return
    size = os.fstat(source.fileno()).st_size  # 0 for a pipe
    started = time.monotonic()
    with click.progressbar(
        repeat(""), size or None, "Importing", item_show_func=lambda text: text, file=sys.stderr
    ) as bar:
        for number, row in enumerate(rows, start=1):
            yield row
            if number % 200 == 0:
                rate = number / max(time.monotonic() - started, 1e-3)
                done = os.lseek(source.fileno(), 0, os.SEEK_CUR) if size else number
                bar.update(done - bar.pos, f"{number:,} rows, {rate:,.0f}/s")


def validated(
    rows: Iterator[Row], identifiers: Identifiers, rejected: RejectedRows
) -> Iterator[NumberedUser]:
    """Yield the valid users, and reject the other rows; at the end `RejectedRows.check` them."""
    for line, fields in rows:
        user = fields if isinstance(fields, str) else parse_user(fields, identifiers)
        if isinstance(user, str):
            rejected.add(line, user)
        else:
            rejected.valid += 1
            yield line, user
    rejected.check()


def importable(users: Iterable[User], identifiers: Identifiers) -> Iterator[User]:
    """Yield users that an import would not reject; raises `RefusedError` for another one."""
    for number, user in enumerate(users, start=1):
        fields = (user.nickname, user.card_number, user.plan, user.profile_url)
        reason = parse_user(fields, identifiers)
        if isinstance(reason, str):
            raise RefusedError(
                f"user {number} in the order of nicknames: {reason}; an import would reject this "
                "user; correct the table, then export again"
            )
        yield user


def parse_user(fields: Fields, identifiers: Identifiers) -> User | str:
    """Return the user, or the reason why there is none, which contains no value."""
    nickname, card_number, plan, url = fields
    if not (isinstance(nickname, str) and isinstance(card_number, str) and isinstance(plan, str)):
        values = zip(FIELDS, fields, strict=True)
        name, value = next(each for each in values if not isinstance(each[1], str))
        return f"{name}: missing" if value is None else f"{name}: not text; write it in quotes"
    user = User(plan, card_number, nickname.removeprefix("@"))
    if not (identifiers.accepts(user) and user.nickname.isprintable()):
        return _invalid_identifier(user, identifiers)
    if not is_plan(plan):
        return f"plan: not {PLAN_FORMAT}"
    if url is None or url == "":
        return user
    if is_profile_url(url):
        return User(plan, card_number, user.nickname, url)
    return f"profile_url: not {PROFILE_URL_FORMAT}"


def _invalid_identifier(user: User, identifiers: Identifiers) -> str:
    if not user.nickname.isprintable():
        return "nickname: contains a control character"
    try:
        identifiers.parse_nickname(user.nickname)
    except InvalidFormat:
        return "nickname: not in a valid format; see identifiers.nickname_pattern"
    if re.search(r"\s", user.card_number):
        return "card_number: contains blanks; only digits are allowed"
    if _EXPONENT.fullmatch(user.card_number):
        text = "card_number: in exponential notation, by which a spreadsheet has lost digits; "
        return f"{text}export the column as text"
    return "card_number: not in a valid format; see identifiers.card_length"

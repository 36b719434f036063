"""A backend for users in a CSV file."""

import asyncio
import csv
import io
from collections.abc import Mapping
from pathlib import Path

from tornado_idv import (
    Backend,
    BackendOptions,
    ByCard,
    ByNickname,
    ConfigPath,
    Kinds,
    Query,
    StartError,
    Unavailable,
    User,
    hookimpl,
)


class CsvOptions(BackendOptions):
    """The options of ``kind: csv`` in config.yaml."""

    path: ConfigPath
    """A file with the columns nickname, card_number and plan."""


class CsvBackend(Backend[CsvOptions]):
    """Users from a CSV file, read once."""

    options_type = CsvOptions

    async def open(self) -> None:
        """Read the file, in a thread: the event loop must not wait for a disk."""
        self._users = await asyncio.to_thread(
            read, self.options.path, fold=self.options.folds_nicknames
        )

    async def find(self, query: Query) -> User | None:
        """Return the user, or ``None``: the file has all users, so this one does not exist."""
        return self._users.get(query)


def read(path: Path, *, fold: bool) -> Mapping[Query, User]:
    """Return the users by nickname and by card number; with ``fold`` nicknames in lower case.

    Raises `Unavailable` for a file that ends within a line: it is being written, or was cut.
    """
    users: dict[Query, User] = {}
    try:
        # Spreadsheets write a byte order mark, which "utf-8" would read as part of a column's name.
        with path.open(newline="", encoding="utf-8-sig") as file:
            text = file.read()
            if not text.endswith("\n"):
                raise Unavailable(f"{path}: the last line has no end; the file may be cut")
            for line, row in enumerate(csv.DictReader(io.StringIO(text, newline="")), start=2):
                if None in row.values():
                    raise Unavailable(f"{path}: line {line}: fields are missing; it may be cut")
                nickname = row["nickname"].removeprefix("@")
                user = User(row["plan"], row["card_number"], nickname)
                by_nickname = ByNickname(nickname.lower() if fold else nickname)
                for query in (by_nickname, ByCard(user.card_number)):
                    if query in users:  # neither of the two may be taken for the other
                        raise StartError(f"{path}: line {line}: another user has the same value")
                    users[query] = user
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError, csv.Error):
        text = "not CSV in UTF-8 with the columns nickname, card_number and plan"
        raise StartError(f"{path}: {text}") from None
    return users


@hookimpl
def idv_kinds() -> Kinds:
    """Add ``kind: csv``."""
    return Kinds(backends={"csv": CsvBackend})

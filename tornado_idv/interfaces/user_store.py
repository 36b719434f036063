"""Access to all users of a backend at once, for the commands ``tornado-idv users``.

Lookups do not use it: a kind of backend offers it with `Backend.user_store`, if it can.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tornado_idv.interfaces.commands import ignore_signals
from tornado_idv.model import User

NumberedUser = tuple[int, User]
"""A user and the line of the imported file that it comes from."""

ReviewImport = Callable[[Iterable[tuple[int, str]], int, int], None]
"""Takes the rejected lines, the number of users to be removed, and that of all stored before.

Each line has a reason that contains no value of it. Raises an error to refuse the import.
"""


class ImportResult(NamedTuple):
    """The number of users that were read and not rejected, and what changed in the store."""

    imported: int
    added: int
    updated: int
    removed: int


class UserStore(ABC):
    """The users of one configured source, which is opened by each method.

    All methods block. They raise `Unavailable` if the source cannot be reached now, and `Broken`
    for data that cannot be served.
    """

    @staticmethod
    def ignore_signals() -> None:
        """Ignore SIGINT and SIGTERM up to the end of the command, in the main thread.

        `replace` and `merge` call it when the commit cannot be undone any more, so that a signal
        does not hide from the user that it is done.
        """
        ignore_signals()

    @abstractmethod
    def count(self) -> int:
        """Return the number of users."""

    @abstractmethod
    def records(self) -> Iterator[User]:
        """Yield all users, of one moment, in the order of the UTF-8 bytes of their nicknames.

        With ``folds_nicknames`` the order is that of the nicknames in lower case.
        """

    @abstractmethod
    def replace(self, users: Iterable[NumberedUser], review: ReviewImport) -> ImportResult:
        """Replace all users by these.

        A user whose nickname or card number is that of an earlier line is rejected. ``review`` is
        called once, before the commit. If it raises, or the iteration of ``users`` does, or the
        process ends, then nothing is changed. Raises `Unavailable`, with a reason that says so,
        if it could not be determined whether users were changed.
        """

    @abstractmethod
    def merge(self, users: Iterable[NumberedUser], review: ReviewImport) -> ImportResult:
        """Add these users, in place of those with the same nicknames; as `replace` otherwise.

        One with the card number of a stored user whose nickname is not among ``users`` is
        rejected too.
        """

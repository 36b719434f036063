"""Access to all users of a backend at once, for the commands ``tornado-idv users``.

Lookups do not use it: a kind of backend offers it with `Backend.user_store`, if it can.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

from tornado_idv.model import User
from tornado_idv.signals import ignore_signals

NumberedUser = tuple[int, User]
"""A user and the line of the imported file that it comes from."""

RejectRows = Callable[[Iterable[tuple[int, str]]], None]
"""Takes the lines that are not imported, each with a reason that contains no value of the line."""


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
    def replace(self, users: Iterable[NumberedUser], reject: RejectRows) -> int:
        """Replace all users by these, and return their number.

        A user whose nickname or card number is that of an earlier line is passed to ``reject``,
        which is called once, before anything is changed. If it raises, or the iteration of
        ``users`` does, or the process ends, then nothing is changed. Raises `Unavailable`, with a
        reason that says so, if it could not be determined whether users were changed.
        """

    @abstractmethod
    def merge(self, users: Iterable[NumberedUser], reject: RejectRows) -> int:
        """Add these users, in place of those with the same nicknames; as `replace` otherwise.

        One with the card number of a stored user whose nickname is not among ``users`` is
        rejected too.
        """

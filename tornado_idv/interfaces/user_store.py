"""Access to all users of a backend, for the commands ``tornado-idv users``.

Lookups do not use it. A kind of backend may offer it with `Backend.user_store`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from tornado_idv.ignored_signals import ignore_signals
from tornado_idv.model import User

StoredRow = tuple[object, ...]
"""The values of a row in the order of the fields, and its key, a number or text."""


class UserTransaction(ABC):
    """A transaction that changes users. Without a `commit`, nothing is changed.

    Other writers wait for its end. Fields are nickname, card_number, plan and, for a list with this
    column, profile_url; other columns are not written. `delete`, `update` and `insert` return the
    number of rows.
    """

    has_profile_url: bool
    """Whether the table has a column of profile URLs."""

    @abstractmethod
    def stored(self) -> Iterator[StoredRow]:
        """Yield all rows with all four fields; any of them may be ``None``."""

    @abstractmethod
    def delete(self, keys: Iterable[object]) -> int:
        """Delete the rows with these keys."""

    @abstractmethod
    def update(self, fields: Sequence[str], rows: Iterable[StoredRow]) -> int:
        """Set the fields of the rows with these keys; other tables may refer to these keys."""

    @abstractmethod
    def insert(self, fields: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
        """Add rows with these fields."""

    @abstractmethod
    def commit(self) -> None:
        """Make the changes visible.

        Raises `Unavailable` if it could not be determined whether they are; its reason says so.
        """


class UserStore(ABC):
    """The users of one configured source. Each method opens it.

    All methods block. They raise `Unavailable` if the source cannot be reached now, and `Broken`
    for data that cannot be served.
    """

    max_removed: str = "2%"
    """The largest share of the users that an import may remove."""

    @staticmethod
    def ignore_signals() -> None:
        """Ignore SIGINT and SIGTERM up to the end of the command, in the main thread.

        A `UserTransaction` calls it when its commit cannot be undone any more: a signal must not
        hide the result from the operator.
        """
        ignore_signals()

    @abstractmethod
    def count(self) -> int:
        """Return the number of users."""

    @abstractmethod
    def records(self) -> Iterator[User]:
        """Yield all users, of one moment, in the order of the UTF-8 bytes of their nicknames.

        With ``folds_nicknames`` the order is by the nicknames in lower case.
        """

    @abstractmethod
    def transaction(self, *, in_place: bool) -> AbstractContextManager[UserTransaction]:
        """Begin a transaction. If the block ends without a commit, its changes are undone.

        With ``in_place`` the source itself is changed. Otherwise it may be replaced as a whole.
        """

"""The interface of user stores: access to all users of a backend.

Only the commands ``tornado-idv users`` use it, not lookups. A kind of backend may offer a user
store by `Backend.user_store`.
"""

import signal
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from tornado_idv.model import User

StoredRow = tuple[object, ...]
"""The values of the fields of a row, in order, and then the key of the row: a number or text."""


def ignore_signals() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP until the process ends. Call this in the main thread.

    A `UserTransaction` calls this when its commit can no longer be undone, because a signal must
    not hide the result from the operator. Commands on keys do the same.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


class UserTransaction(ABC):
    """A transaction that changes users. Without a `commit`, nothing is changed.

    Other writers wait for the end of the transaction. The fields are nickname, card_number and
    plan, and also profile_url if the imported list has this column. Other columns are not written.
    `delete`, `update` and `insert` return the number of rows.
    """

    has_profile_url: bool
    """Whether the table has a column of profile URLs."""

    @abstractmethod
    def stored(self) -> Iterator[StoredRow]:
        """Yield all rows with all four fields. Any field may be ``None``."""

    @abstractmethod
    def delete(self, keys: Iterable[object]) -> int:
        """Delete the rows with these keys."""

    @abstractmethod
    def update(self, fields: Sequence[str], rows: Iterable[StoredRow]) -> int:
        """Set fields in rows by key. A key stays, because other tables may refer to it."""

    @abstractmethod
    def insert(self, fields: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
        """Add rows with these fields."""

    @abstractmethod
    def commit(self) -> None:
        """Make the changes visible.

        Raises `Unavailable` if the changes may or may not be visible, for example after a lost
        connection. The reason of the error must explain this.
        """


class UserStore(ABC):
    """All users of one configured source. Each method opens the source.

    All methods block. They raise `Unavailable` if the source cannot be reached now, and `Broken` if
    its data cannot be served.
    """

    max_removed: str = "2%"
    """The maximum percentage of users that an import may remove."""

    ignore_signals = staticmethod(ignore_signals)

    @abstractmethod
    def count(self) -> int:
        """Return the number of users."""

    @abstractmethod
    def records(self) -> Iterator[User]:
        """Yield all users of one snapshot, in the order of the UTF-8 bytes of their nicknames.

        With ``folds_nicknames``, they are sorted by nickname in lower case.
        """

    @abstractmethod
    def transaction(self, *, in_place: bool) -> AbstractContextManager[UserTransaction]:
        """Begin a transaction. If the block ends without a commit, the changes are rolled back.

        Without ``in_place``, the commit may replace the source by a copy with the changes.
        """

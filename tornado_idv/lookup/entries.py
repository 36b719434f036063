"""The entries of the answer cache, by the text of their query."""

from collections.abc import Iterator, Sequence

from cachetools import Cache
from msgspec import Struct

from tornado_idv.lookup.table import Table, emptied, take
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Answer


class Epoch(Struct, eq=False, gc=False):
    """The time between two purges of a backend. Entries from an ``expired`` epoch are invalid."""

    expired: bool = False


class Entry(Struct, eq=False, gc=False):
    """A cached answer and its times, in seconds of the cache's timer.

    The answer is fresh until ``fresh_until``, and may be served stale until ``stale_until``. From
    ``refresh_at`` on, a hit starts a refresh.
    """

    answer: Answer
    epoch: Epoch
    fresh_until: float
    refresh_at: float
    stale_until: float


class Entries(Table[Entry]):
    """Entries by the text of a query, not by the `Query`, because a ``str`` is hashed faster."""

    def __init__(self, size: int, counters: Counters) -> None:
        super().__init__(size, counters)
        self._same_user: list[dict[str, str | set[str]]] = [{} for _ in self._parts]
        """Maps the text of a query to the texts of other cached queries for the same user.

        `drop_user` needs them. A single text is a plain ``str``, because sets take more memory.
        """
        self._unswept = 0

    def put(self, text: str, entry: Entry) -> None:
        before = Table.put(self, text, entry)  # `super` takes longer
        if before is not None:
            if before.answer.user == entry.answer.user:
                return  # a renewal: the index has both names
            self._on_removal(text, before)
        for other in _other_texts(text, entry):
            index = self._same_user[hash(other) % self._number]
            texts = index.setdefault(other, text)
            if isinstance(texts, set):
                texts.add(text)
            elif texts != text:
                index[other] = {texts, text}

    def drop_user(self, text: str) -> bool:
        """Remove the user found by the query ``text``. Return whether an entry was removed."""
        if before := self._count:
            texts = self._same_user[hash(text) % self._number].get(text, ())
            for each in (text, *((texts,) if isinstance(texts, str) else texts)):
                self.pop(each)
        return self._count < before

    def clear(self) -> None:
        """Remove all entries. The memory of many entries is freed in steps."""
        index, self._same_user = self._same_user, [{} for _ in self._parts]
        super().clear()
        take(emptied(index))

    def sweep(self) -> None:
        """Remove the entries of expired epochs, in steps. A running sweep starts over."""
        is_running, self._unswept = self._unswept > 0, self._number
        if not is_running:
            take(self._swept())

    def _swept(self) -> Iterator[None]:
        while self._unswept:
            self._unswept -= 1
            part = self._parts[self._unswept]
            for text in [each for each in part if Cache.__getitem__(part, each).epoch.expired]:
                self.pop(text)
            yield

    def _on_removal(self, text: str, entry: Entry) -> None:
        for other in _other_texts(text, entry):
            index = self._same_user[hash(other) % self._number]
            texts = index[other]
            if isinstance(texts, set):
                texts.discard(text)
            if not texts or texts == text:
                del index[other]


def _other_texts(text: str, entry: Entry) -> Sequence[str]:
    user = entry.answer.user
    if user is None:
        return ()
    return [each for each in (user.card_number, f"@{user.nickname}") if each != text]

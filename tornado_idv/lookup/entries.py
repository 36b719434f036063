"""The entries of the answer cache by the text of their query, and failures by theirs."""

from __future__ import annotations

from collections.abc import Sequence

from cachetools import Cache, LRUCache, TTLCache
from msgspec import Struct

from tornado_idv.errors import LookupFailed
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Answer


class Epoch(Struct, eq=False, gc=False):
    """The time between two purges of one backend. Expiring it drops all its entries in one step."""

    expired: bool = False


class Entry(Struct, eq=False, gc=False):
    """A cached answer and its times, in seconds of the cache's timer.

    It is fresh until ``fresh_until`` and may be served stale until ``stale_until``. A hit
    before ``next_check`` only returns the answer; a later one also updates the LRU order, and
    from ``refresh_at`` on starts a refresh.
    """

    answer: Answer
    epoch: Epoch
    fresh_until: float
    refresh_at: float
    stale_until: float
    next_check: float


class Entries(LRUCache[str, Entry]):
    """Entries by the text of their query: a str caches its hash, a `Query` computes its own.

    An expired entry stays until newer ones need its place. (`TLRUCache` expires in bulk:
    112 ms for 100,000 entries within one store.)
    """

    def __init__(self, size: int, counters: Counters) -> None:
        super().__init__(size)
        self._counters = counters
        self._same_user: dict[str, str | set[str]] = {}
        """For each nickname and card, the entries of its user under another text.

        A purge by one of them drops the entry of the other. It is mostly one: a set for each would
        take 20 MB for 100,000 entries.
        """

    def __setitem__(self, text: str, entry: Entry) -> None:
        before = self.find(text)
        super().__setitem__(text, entry)
        if before is not None:
            if before.answer.user == entry.answer.user:
                return  # a renewal: the index has both names
            self._remove_from_index(text, before)
        for other in _other_texts(text, entry):
            texts = self._same_user.setdefault(other, text)
            if isinstance(texts, set):
                texts.add(text)
            elif texts != text:
                self._same_user[other] = {texts, text}

    def __delitem__(self, text: str) -> None:
        self._remove_from_index(text, Cache.__getitem__(self, text))
        super().__delitem__(text)

    def _remove_from_index(self, text: str, entry: Entry) -> None:
        for other in _other_texts(text, entry):
            texts = self._same_user[other]
            if isinstance(texts, set):
                texts.discard(text)
            if not texts or texts == text:
                del self._same_user[other]

    def clear(self) -> None:
        super().clear()
        self._same_user.clear()

    def popitem(self) -> tuple[str, Entry]:
        """Make room for another entry."""
        self._counters.evictions += 1
        return super().popitem()

    def find(self, text: str) -> Entry | None:
        """Return the entry or ``None``, without an update of its LRU position."""
        return Cache.__getitem__(self, text) if text in self else None

    def touch(self, text: str) -> None:
        """Make an entry the most recently used."""
        self[text]

    def drop_user(self, text: str) -> None:
        """Remove the entries of a user by the text of a query; the others cost no time."""
        texts = self._same_user.get(text, ())
        for each in (text, *((texts,) if isinstance(texts, str) else texts)):
            if each in self:
                del self[each]


def _other_texts(text: str, entry: Entry) -> Sequence[str]:
    user = entry.answer.user
    if user is None:
        return ()
    return [each for each in (user.card_number, f"@{user.nickname}") if each != text]


class Failures(TTLCache[str, LookupFailed | None]):
    """Recent failures by the text of their query."""

    def find(self, text: str) -> LookupFailed | None:
        """Return the recent failure or ``None``. `get` is slower: it catches a `KeyError`."""
        return self[text] if Cache.__contains__(self, text) else None

    def __missing__(self, key: str) -> None:
        """Return ``None`` for an expired failure."""

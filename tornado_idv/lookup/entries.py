"""The entries of the answer cache by the text of their query, and failures by theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cachetools import Cache, LRUCache, TTLCache
from msgspec import Struct

from tornado_idv.errors import LookupFailed
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Answer, User


class Epoch:
    """The time between two purges of one backend: expiring it drops all its entries at once."""

    __slots__ = ("expired",)

    def __init__(self) -> None:
        self.expired = False


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


class _OtherTexts:
    """For each text, the entries of the same user under another text; mostly it is one.

    A user is found by nickname and by card; a purge of one of them drops the entry of the other.
    """

    def __init__(self) -> None:
        self._entries: dict[str, str | set[str]] = {}

    def find(self, text: str) -> Iterable[str]:
        """Return the texts of entries of the user with this text."""
        entries = self._entries.get(text, ())
        return (entries,) if isinstance(entries, str) else tuple(entries)

    def add(self, text: str, user: User | None) -> None:
        """Add an entry."""
        for other in _other_texts(text, user):
            entries = self._entries.setdefault(other, text)
            if isinstance(entries, set):
                entries.add(text)
            else:
                self._entries[other] = {entries, text}

    def remove(self, text: str, user: User | None) -> None:
        """Remove an entry that was added."""
        for other in _other_texts(text, user):
            entries = self._entries[other]
            if isinstance(entries, set):
                entries.discard(text)
            if not entries or entries == text:
                del self._entries[other]

    def clear(self) -> None:
        self._entries.clear()


def _other_texts(text: str, user: User | None) -> Iterator[str]:
    if user is not None:
        if user.card_number != text:
            yield user.card_number
        if (nickname := f"@{user.nickname}") != text:
            yield nickname


class Entries(LRUCache[str, Entry]):
    """Entries by the text of their query: a str caches its hash, a `Query` computes its own.

    An expired entry stays until newer ones need its place. (`TLRUCache` expires in bulk:
    112 ms for 100,000 entries within one store.)
    """

    def __init__(self, size: int, counters: Counters) -> None:
        super().__init__(size)
        self._counters = counters
        self._other_texts = _OtherTexts()

    def __setitem__(self, text: str, entry: Entry) -> None:
        before = self.find(text)
        if before is not None:
            self._other_texts.remove(text, before.answer.user)
        super().__setitem__(text, entry)
        self._other_texts.add(text, entry.answer.user)

    def __delitem__(self, text: str) -> None:
        self._other_texts.remove(text, Cache.__getitem__(self, text).answer.user)
        super().__delitem__(text)

    def clear(self) -> None:
        super().clear()
        self._other_texts.clear()

    def popitem(self) -> tuple[str, Entry]:
        """Make room for another entry."""
        self._counters.evictions += 1
        return super().popitem()

    def find(self, text: str) -> Entry | None:
        """Return the entry, if there is one, without updating its LRU position."""
        return Cache.__getitem__(self, text) if text in self else None

    def touch(self, text: str) -> None:
        """Make an entry the most recently used."""
        self[text]

    def drop_user(self, text: str) -> None:
        """Remove the entries of a user by the text of a query; the others cost no time."""
        for each in (text, *self._other_texts.find(text)):
            if each in self:
                del self[each]


class Failures(TTLCache[str, LookupFailed | None]):
    """Recent failures by the text of their query."""

    def find(self, text: str) -> LookupFailed | None:
        """Return a recent failure; mostly there is none, which `get` finds out by an exception."""
        return self[text] if Cache.__contains__(self, text) else None

    def __missing__(self, key: str) -> None:
        """Return ``None`` for an expired one."""

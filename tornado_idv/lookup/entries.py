"""The entries of the answer cache, and recent failures, by the text of their query.

No operation takes time that grows with their number. One large dictionary would be rebuilt now and
then, and freed in one step: 100 and 300 ms for 1,000,000 entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from math import inf
from time import monotonic
from typing import Any, Generic, TypeVar

from cachetools import Cache, LRUCache
from msgspec import Struct

from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Answer

Value = TypeVar("Value")
_PART = 1024
"""Values in one part of a full table."""
_STEP = 0.001
"""Seconds in one iteration of the event loop for the removal of values."""


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


class Table(Generic[Value]):
    """At most ``size`` values by text, in many small LRU caches.

    In a full table a new value replaces the least recently used one of its cache. An expired one
    stays until then. (`TLRUCache` of cachetools drops all in one store: 112 ms for 100,000.)
    ``counters`` count these evictions.
    """

    def __init__(self, size: int, counters: Counters) -> None:
        self._size = size
        self._counters = counters
        self._count = 0
        # Odd: the texts of one part must differ in the lowest bits of their hashes.
        self._number = size // _PART | 1
        self._parts = self._new_parts()

    def _new_parts(self) -> list[Cache[str, Value]]:
        return [LRUCache(inf) for _ in range(self._number)]

    def __len__(self) -> int:
        return self._count

    def parts(self) -> Iterator[Iterator[tuple[str, Value]]]:
        """Yield the values of each part by text, without an update of their LRU positions.

        Values may be put and removed between two parts.
        """
        for number in range(self._number):
            if part := self._parts[number]:
                yield ((text, Cache.__getitem__(part, text)) for text in part)

    def find(self, text: str) -> Value | None:
        """Return the value or ``None``, without an update of its LRU position."""
        part = self._parts[hash(text) % self._number]
        return Cache.__getitem__(part, text) if text in part else None

    def touch(self, text: str) -> None:
        """Make a value the most recently used."""
        self._parts[hash(text) % self._number][text]

    def put(self, text: str, value: Value) -> Value | None:
        """Add a value, and return the one that it replaces."""
        part = self._parts[hash(text) % self._number]
        before = Cache.__getitem__(part, text) if text in part else None
        if before is None:
            if self._count >= self._size and part:
                self._count -= 1
                self._counters.evictions += 1
                self._on_removal(*part.popitem())
            self._count += 1
        part[text] = value
        return before

    def pop(self, text: str) -> None:
        """Remove a value, if there is one."""
        part = self._parts[hash(text) % self._number]
        if text in part:
            value = Cache.__getitem__(part, text)
            del part[text]
            self._count -= 1
            self._on_removal(text, value)

    def clear(self) -> None:
        """Remove all values. The memory of many is freed in steps."""
        parts, self._parts, self._count = self._parts, self._new_parts(), 0
        _take(_emptied(parts))

    def _on_removal(self, text: str, value: Value) -> None:
        """Do nothing; for subclasses."""


class Entries(Table[Entry]):
    """Entries by the text of their query: a str caches its hash, a `Query` computes its own."""

    def __init__(self, size: int, counters: Counters) -> None:
        super().__init__(size, counters)
        self._same_user: list[dict[str, str | set[str]]] = [{} for _ in self._parts]
        """For each nickname and card, the entries of its user under another text.

        A purge by one of them drops the entry of the other. It is mostly one: a set for each would
        take 20 MB for 100,000 entries.
        """
        self._unswept = 0

    def put(self, text: str, entry: Entry) -> Entry | None:
        """Add an entry, and return the one that it replaces."""
        before = Table.put(self, text, entry)  # `super` takes longer
        if before is not None:
            if before.answer.user == entry.answer.user:
                return before  # a renewal: the index has both names
            self._on_removal(text, before)
        for other in _other_texts(text, entry):
            index = self._same_user[hash(other) % self._number]
            texts = index.setdefault(other, text)
            if isinstance(texts, set):
                texts.add(text)
            elif texts != text:
                index[other] = {texts, text}
        return before

    def drop_user(self, text: str) -> None:
        """Remove the entries of a user by the text of a query; the others cost no time."""
        if not self._count:
            return
        texts = self._same_user[hash(text) % self._number].get(text, ())
        for each in (text, *((texts,) if isinstance(texts, str) else texts)):
            self.pop(each)

    def clear(self) -> None:
        """Remove all entries. The memory of many is freed in steps."""
        index, self._same_user = self._same_user, [{} for _ in self._parts]
        super().clear()
        _take(_emptied(index))

    def sweep(self) -> None:
        """Remove the entries of expired epochs, many in steps. A running sweep starts over."""
        is_running, self._unswept = self._unswept > 0, self._number
        if not is_running:
            _take(self._swept())

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


def _emptied(parts: list[Any]) -> Iterator[None]:
    while parts:
        part = parts.pop()
        # One by one: the memory of many is given back when the last value on each page is freed.
        while part:
            part.popitem()
            yield


def _take(steps: Iterator[object]) -> None:
    """Take steps for `_STEP` seconds now, and in each further iteration of the event loop."""
    end = monotonic() + _STEP
    for _ in steps:
        if monotonic() >= end:
            asyncio.get_running_loop().call_soon(_take, steps)
            break

"""The entries of the answer cache, by the text of their query, in a table of many small caches.

The time of an operation does not grow with the number of entries. A single dictionary of 1,000,000
entries would block the event loop for 100 ms when it is resized, and for 300 ms when it is freed.
"""

import asyncio
from collections import deque
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
"""Average number of values in each small cache of a full table."""
_STEP = 0.001
"""Maximum seconds per event-loop iteration for the removal of values."""


class Table(Generic[Value]):
    """At most ``size`` values by text, in many small LRU caches.

    In a full table, a new value evicts the least recently used value of the same small cache.
    ``counters`` count these evictions. Values do not expire, because `TLRUCache` of cachetools
    would drop all expired values in one step (112 ms for 100,000).
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
        """Yield the texts and values of each small cache. LRU positions do not change.

        Before it takes the next small cache, the caller may put and remove values.
        """
        for number in range(self._number):
            if part := self._parts[number]:
                yield ((text, Cache.__getitem__(part, text)) for text in part)

    def find(self, text: str) -> Value | None:
        """Return the value or ``None``. Its LRU position does not change."""
        part = self._parts[hash(text) % self._number]
        return Cache.__getitem__(part, text) if text in part else None

    def use(self, text: str) -> Value | None:
        """Return the value or ``None``. The value becomes the most recently used."""
        part = self._parts[hash(text) % self._number]
        return part[text] if text in part else None  # noqa: SIM401 - it takes longer

    def put(self, text: str, value: Value) -> Value | None:
        """Add a value. Return the replaced value, or ``None``."""
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
        """Remove the value of a text. Without a value, do nothing."""
        part = self._parts[hash(text) % self._number]
        if text in part:
            value = Cache.__getitem__(part, text)
            del part[text]
            self._count -= 1
            self._on_removal(text, value)

    def clear(self) -> None:
        """Remove all values. The memory of many values is freed in steps."""
        parts, self._parts, self._count = self._parts, self._new_parts(), 0
        take(emptied(parts))

    def _on_removal(self, text: str, value: Value) -> None:
        """Called after the removal of a value. Subclasses may override this method."""


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


def emptied(parts: list[Any]) -> Iterator[None]:
    """Remove all values from dictionaries, one value per step."""
    while parts:
        part = parts.pop()
        # One by one: the memory of many is given back when the last value on each page is freed.
        while part:
            part.popitem()
            yield


def take(steps: Iterator[object]) -> None:
    """Run an iterator for `_STEP` seconds now, and in each further iteration of the event loop.

    Without a running loop, run it to its end now.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        deque(steps, maxlen=0)
        return
    end = monotonic() + _STEP
    for _ in steps:
        if monotonic() >= end:
            loop.call_soon(take, steps)
            break

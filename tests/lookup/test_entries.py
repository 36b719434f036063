"""Many entries: which are dropped, and how much is done at a time."""

import asyncio
import random
import sys
import time
from collections.abc import Callable
from itertools import count, islice
from typing import Any

import pytest

from tornado_idv.lookup import entries as module
from tornado_idv.lookup.entries import Entries, Entry, Epoch, Table
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Answer, User

MANY = 5000
"""More than one dictionary of a table has."""


def entry(user: User | None, epoch: Epoch | None = None) -> Entry:
    return Entry(Answer(user, "members"), epoch or Epoch(), 1.0, 1.0, 1.0)


@pytest.fixture
def _slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the clock is a millisecond later."""
    milliseconds = count()
    monkeypatch.setattr(module, "monotonic", lambda: next(milliseconds) / 1000)


def texts(table: Table[Any]) -> set[str]:
    return {text for part in table.parts() for text, _ in part}


async def turns_until(is_done: Callable[[], bool]) -> int:
    """Return the number of iterations of the loop, in each of which others have their turn."""
    for turns in range(10 * MANY):
        if is_done():
            return turns
        await asyncio.sleep(0)
    raise TimeoutError


def texts_of(entries: Entries, text: str) -> set[str]:
    named: set[str] = set()
    for each in texts(entries):
        kept = entries.find(each)
        user = kept.answer.user if kept is not None else None
        if each == text or (user and text in {user.card_number, f"@{user.nickname}"}):
            named.add(each)
    return named


def test_a_purge_of_a_user_drops_what_a_scan_finds() -> None:
    chooser = random.Random(7)
    entries = Entries(8, Counters())
    for _ in range(2000):
        name, card = chooser.choice("abcd"), chooser.choice("1234")
        text = chooser.choice([f"@{name}", card, "@alias"])
        user = chooser.choice([User("Free", card, name), None])
        if chooser.random() < 0.8:
            entries.put(text, entry(user))
            continue
        expected = texts(entries) - texts_of(entries, text)
        entries.drop_user(text)
        assert texts(entries) == expected
    for text in texts(entries):
        entries.pop(text)
    assert entries._same_user == [{}]  # noqa: SLF001 - the size of a table


async def test_nothing_is_left_of_entries_that_were_cleared() -> None:
    entries = Entries(8, counters := Counters())
    entries.put("@a", entry(User("Free", "1", "a")))
    assert entries._same_user == [{"1": "@a"}]  # noqa: SLF001 - sets would take 20 MB for 100,000 entries
    entries.clear()
    assert not entries
    assert not texts(entries)
    assert entries._same_user == [{}]  # noqa: SLF001 - the size of a table
    assert counters.evictions == 0


def test_purges_of_users_take_no_longer_among_many_entries() -> None:
    entries = Entries(MANY, Counters())
    for number in range(MANY):
        entries.put(str(number), entry(User("Free", str(number), f"user{number}")))
    started = time.process_time()
    for number in range(400):
        entries.drop_user(f"@user{number}")
    assert time.process_time() - started < 0.2  # a scan for each takes 2 s
    assert len(entries) == MANY - 400


@pytest.mark.usefixtures("_slow_clock")
async def test_many_values_are_gone_at_once_and_freed_in_steps() -> None:
    value = object()
    held = sys.getrefcount(value)
    table = Table[object](MANY, Counters())
    for number in range(MANY):
        table.put(str(number), value)
    table.clear()
    assert len(table) == 0
    assert not any(table.find(str(number)) for number in range(MANY))
    table.put("new", value)
    assert await turns_until(lambda: sys.getrefcount(value) == held + 1) > MANY / 10
    assert texts(table) == {"new"}


@pytest.mark.usefixtures("_slow_clock")
async def test_entries_of_expired_epochs_are_removed_in_steps_and_no_other() -> None:
    entries, epochs = Entries(3 * MANY, Counters()), [Epoch(), Epoch(), Epoch()]
    for number in range(3 * MANY):
        user = User("Free", str(number), f"user{number}")
        entries.put(f"@user{number}", entry(user, epochs[number % 3]))
    epochs[0].expired = True
    entries.sweep()
    assert await turns_until(lambda: len(entries) < 3 * MANY) < MANY / 10
    epochs[1].expired = True
    entries.sweep()
    for number in range(3):
        entries.put(f"@user{number}", entry(User("Pro", str(number), f"user{number}")))
    assert await turns_until(lambda: len(entries) == MANY + 2) > MANY / module._PART  # noqa: SLF001 - the size of a table
    assert texts(entries) == {"@user0", "@user1", *(f"@user{n}" for n in range(2, 3 * MANY, 3))}
    assert sum(map(len, entries._same_user)) == MANY + 2  # noqa: SLF001 - the size of a table


def test_full_table_has_its_number_of_values_and_those_in_use() -> None:
    counters = Counters()
    entries = Entries(MANY, counters)
    for number in range(4 * MANY):
        entries.put(str(number), entry(None))
        entries.use("0")
    assert len(entries) == len(texts(entries)) == MANY
    assert counters.evictions == 3 * MANY
    assert entries.find("0") is not None
    kept = sum(number >= 3 * MANY for number in map(int, texts(entries)))
    assert kept > 0.9 * MANY


def test_full_table_takes_a_value_for_an_empty_part() -> None:
    table = Table[int](size := 2 * module._PART, Counters())  # noqa: SLF001 - a table of two parts
    number = len(table._parts)  # noqa: SLF001 - a table of two parts
    others = (text for text in map(str, count()) if hash(text) % number)
    for text in islice(others, size):
        table.put(text, 1)
    new = next(text for text in map(str, count()) if hash(text) % number == 0)
    table.put(new, 2)
    assert table.find(new) == 2


def test_no_store_rebuilds_more_than_a_small_part_of_a_table() -> None:
    """Python rebuilds a dictionary that has had many new keys, whatever was removed from it."""
    table = Table[int](4 * MANY, Counters())
    for number in range(8 * MANY):
        table.put(str(number), number)
    assert max(map(len, table._parts)) < 2 * module._PART  # noqa: SLF001 - the size of a table

"""The index by which a purge of a user finds the entries to drop."""

from __future__ import annotations

import random
import time

from tornado_idv.lookup.entries import Entries, Entry, Epoch
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Answer, User


def entry(user: User | None) -> Entry:
    return Entry(Answer(user, "members"), Epoch(), 1.0, 1.0, 1.0, 1.0)


def texts_of(entries: Entries, text: str) -> set[str]:
    """Return what a purge has to drop, from a scan of all entries."""
    named: set[str] = set()
    for each in entries:
        kept = entries.find(each)
        user = kept.answer.user if kept is not None else None
        if each == text or (user and text in {user.card_number, f"@{user.nickname}"}):
            named.add(each)
    return named


def test_a_purge_of_a_user_drops_what_a_scan_finds() -> None:
    """Also of users who share a card or changed it, and after evictions and replacements."""
    chooser = random.Random(7)
    entries = Entries(8, Counters())
    for _ in range(2000):
        name, card = chooser.choice("abcd"), chooser.choice("1234")
        text = chooser.choice([f"@{name}", card, "@alias"])
        user = chooser.choice([User("Free", card, name), None])
        if chooser.random() < 0.8:
            entries[text] = entry(user)
            continue
        expected = set(entries) - texts_of(entries, text)
        entries.drop_user(text)
        assert set(entries) == expected
    while entries:
        entries.popitem()
    assert entries._same_user == {}


def test_nothing_is_left_of_entries_that_were_cleared() -> None:
    entries = Entries(8, counters := Counters())
    entries["@a"] = entry(User("Free", "1", "a"))
    entries.clear()
    assert not entries
    assert entries._same_user == {}
    assert counters.evictions == 0


def test_index_of_one_entry_of_a_user_has_no_set() -> None:
    """It would take 20 MB for 100,000 entries."""
    entries = Entries(8, Counters())
    entries["@a"] = entry(User("Free", "1", "a"))
    assert entries._same_user == {"1": "@a"}


def test_purges_of_users_take_no_longer_among_many_entries() -> None:
    entries = Entries(5000, Counters())
    for number in range(5000):
        entries[str(number)] = entry(User("Free", str(number), f"user{number}"))
    started = time.process_time()
    for number in range(400):
        entries.drop_user(f"@user{number}")
    assert time.process_time() - started < 0.2  # a scan for each takes 2 s
    assert len(entries) == 4600

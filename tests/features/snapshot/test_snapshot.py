"""The rules of a snapshot: what is written, and what of it is served after a restart, how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fakes.clock_and_backends import Ticker, steady_cache
from support.fakes.directories import ALICE, QUERY, encode
from tornado_idv.errors import Unavailable
from tornado_idv.features.snapshot import contents as snapshot
from tornado_idv.features.snapshot.contents import Snapshot, SnapshotIgnored, Texts
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup.cache import CacheLimits
from tornado_idv.model import Answer, ByCard, ByNickname, Query, User

LIMITS = CacheLimits(ttl=300, stale_if_error=3600)
CARD = ByCard("4000")
NOW = 1_800_000_000.0
Revisions = dict[str, str | None]
UNTRACKED: Revisions = {"crm": None}


def content(parts: Iterable[bytes]) -> bytes:
    return b"".join(snapshot.to_file([*parts]))


class Process:
    """The cache of one process, which began at a time of the wall clock."""

    def __init__(self, started: float = NOW) -> None:
        self.ticker = Ticker()
        self.started = started - self.ticker.now
        self.cache = steady_cache(LIMITS, self.ticker)

    @property
    def clock(self) -> float:
        return self.started + self.ticker.now

    def store(self, user: User | None = ALICE, query: Query = QUERY, **fields: Any) -> None:
        fields = {"backend": "crm", "since": self.ticker.now, **fields}
        answer = Answer(user, body=encode(user), **fields)
        self.cache.store(query, answer)

    def stop(self, revisions: Revisions = UNTRACKED) -> bytes:
        header = Snapshot("scope", self.clock, revisions)
        return content(snapshot.encode(header, self.cache, Texts()))

    def load(self, content: bytes, scope: str = "scope", revisions: Revisions = UNTRACKED) -> int:
        loaded = snapshot.decode(content, scope, self.clock)
        return snapshot.restore(loaded, self.cache, self.clock, revisions, encode)

    def restarted(self, pause: float = 0.0) -> Process:
        """Return the process after this one, which was down for ``pause`` seconds."""
        after = Process(self.clock + pause)
        after.load(self.stop())
        return after

    def is_stale(self, query: Query = QUERY) -> bool:
        answer = self.cache.get_stale(query)
        assert self.cache.get(query) is None
        assert answer is None or answer.stale
        return answer is not None


def lifetime(process: Process) -> float:
    """Return how many seconds an answer is served while lookups fail."""
    began = process.ticker.now
    while process.cache.get_stale(QUERY) is not None:
        process.ticker.now += 1
    return process.ticker.now - began


def test_found_user_is_served_stale_and_never_fresh() -> None:
    before = Process()
    before.store()
    before.store(query=CARD)
    after = before.restarted()
    answer = after.cache.get_stale(QUERY)
    assert answer is not None
    assert (answer.user, answer.backend, answer.body) == (ALICE, "crm", b"Free")
    assert after.is_stale()
    assert after.is_stale(CARD)


@pytest.mark.parametrize(
    "fields",
    [
        {"degraded": True},
        {"storable": False},
        {"backend": None},
        {"user": None, "backend": None},
        {"since": -2600.0},
    ],
    ids=["degraded", "not storable", "of no backend", "not found", "ended"],
)
def test_other_answers_are_not_written(fields: dict[str, Any]) -> None:
    before = Process()
    before.store(**fields)
    before.cache.store_failure(CARD, Unavailable("down"))
    assert b"alice" not in before.stop()


def test_answer_lives_for_stale_if_error_after_it_was_stored_through_any_number_of_restarts() -> (
    None
):
    process = Process()
    process.store()
    process.ticker.now += 600
    for _ in range(5):
        process = process.restarted(pause=100)
        process.ticker.now += 500
    assert lifetime(process) == 3600 - 600 - 5 * 600 == 0
    process = Process()
    process.store()
    for _ in range(5):
        process = process.restarted(pause=600)
    assert lifetime(process) == 600


def test_answer_does_not_outlive_its_own_end() -> None:
    before = Process()
    answer = Answer(ALICE, "crm", before.ticker.now, b"Free")
    before.cache.keep_stale(QUERY, answer, 50)
    after = before.restarted(pause=10)
    assert lifetime(after) == 40
    assert Process(before.clock + 50).load(before.stop()) == 0


def test_answer_that_lasts_longer_is_kept() -> None:
    """The files of two workers may both have the user."""
    process = Process()
    for plan, seconds in (("Free", 3500), ("Pro", 3600), ("Gold", 3500)):
        answer = Answer(User(plan, "4000", "alice"), "crm", process.ticker.now)
        process.cache.keep_stale(QUERY, answer, seconds)
    kept = process.cache.get_stale(QUERY)
    assert kept is not None
    assert kept.user == User("Pro", "4000", "alice")


@pytest.mark.parametrize(
    ("now", "kept"),
    [
        ({"a": "1", "b": "2", "c": None}, {"a"}),
        ({"a": None, "b": "1", "c": None}, {"a", "b", "c"}),
        ({"a": "1", "b": "1", "c": "1"}, {"a", "b"}),
        ({"b": "1", "c": None}, {"b", "c"}),
        ({"x": None, "a": "1", "b": "1"}, set()),
    ],
)
def test_answers_of_changed_backends_are_dropped(now: Revisions, kept: set[str]) -> None:
    before = Process()
    for name in "abc":
        before.store(User("Free", "1", name), ByNickname(name), backend=name)
    after = Process(before.clock)
    count = after.load(before.stop(revisions={"a": "1", "b": "1", "c": None}), revisions=now)
    assert {name for name in "abc" if after.is_stale(ByNickname(name))} == kept
    assert count == len(kept)


@pytest.mark.parametrize(
    ("change", "seconds", "scope", "reason"),
    [
        (lambda content: content, -1, "scope", "clock"),
        (lambda content: content, 0, "other", "settings"),
        (lambda content: content.replace(b"snapshot 1", b"snapshot 2", 1), 0, "scope", "format"),
        (lambda content: content[1:], 0, "scope", "format"),
        (lambda content: b"", 0, "scope", "format"),
    ],
    ids=["clock set back", "other settings", "another version", "another file", "empty"],
)
def test_file_of_no_use_is_ignored_with_the_reason(
    change: Callable[[bytes], bytes], seconds: int, scope: str, reason: str
) -> None:
    before = Process()
    before.store()
    with pytest.raises(SnapshotIgnored, match=reason):
        Process(before.clock + seconds).load(change(before.stop()), scope)


def test_no_flipped_or_missing_byte_is_ever_accepted() -> None:
    before = Process()
    before.store()
    content = before.stop()
    after = Process()
    for i in range(len(content)):
        flipped = bytearray(content)
        flipped[i] ^= 0x20
        for changed in (bytes(flipped), content[:i]):
            with pytest.raises(SnapshotIgnored):
                after.load(changed)
    with pytest.raises(SnapshotIgnored):
        after.load(content + b"\0")


@given(st.lists(st.binary(max_size=30), max_size=4))
def test_content_with_a_right_checksum_that_is_not_ours_is_ignored(parts: list[bytes]) -> None:
    with pytest.raises(SnapshotIgnored):
        Process().load(content(parts))


def test_lookups_may_go_on_while_it_is_written() -> None:
    process = Process()
    names = [f"user-{i}" for i in range(1200)]
    for name in names:
        process.store(User("Free", name[5:], name), ByNickname(name))
    parts = []
    header = Snapshot("scope", process.clock, {"crm": None})
    for part in snapshot.encode(header, process.cache, Texts()):
        parts.append(part)
        process.store(User("Free", "7777", "late"), ByNickname(f"late-{len(parts)}"))
        process.cache.apply(Purge(queries=(ByNickname(names[-1]),)))
    after = Process(process.clock)
    after.load(content(parts))
    assert [each for each in names if not after.is_stale(ByNickname(each))] == [names[-1]]


def test_answer_that_is_stored_while_it_is_written_keeps_its_time() -> None:
    before = Process()
    before.store()
    parts = snapshot.encode(Snapshot("scope", before.clock, {"crm": None}), before.cache, Texts())
    header = next(parts)
    before.ticker.now += 100
    before.store(query=CARD)
    after = Process(before.clock)
    assert after.load(content([header, *parts])) == 2
    for seconds, stale in ((3499, (True, True)), (1, (False, True)), (100, (False, False))):
        after.ticker.now += seconds
        assert (after.is_stale(), after.is_stale(CARD)) == stale


def test_name_that_is_added_again_takes_no_memory() -> None:
    """As after each write that fails, for example on a full disk."""
    texts, names = Texts(), [str(each) for each in range(50_000)]
    for each in names * 2:
        texts.add([each])
    assert sum(map(len, texts._sets)) == sum(each in texts for each in names) == 50_000  # noqa: SLF001 - each name is in one set

"""Which shared entries are valid after purges, compared with a list of all purges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idv_redis.purge_log import PurgeLog
from tornado_idv import ByCard, ByNickname, Purge, SharedAnswer, User

ALICE, BOB = User("Free", "1", "alice"), User("Pro", "2", "bob")
ANSWERS = [
    SharedAnswer(user, backend, 0.0, 0.0)
    for user, backend in [(ALICE, "a"), (ALICE, "b"), (BOB, "a"), (None, None)]
]
PURGES = st.builds(
    Purge,
    st.sampled_from([(), (), ("a",), ("a", "b")]),
    st.sampled_from([(), (ByNickname("alice"),), (ByCard("1"),), (ByCard("2"), ByCard("3"))]),
)


def names(purge: Purge, answer: SharedAnswer) -> bool:
    if answer.user is None or not any(purge) or answer.backend in purge.backends:
        return True
    texts = {f"@{answer.user.nickname}", answer.user.card_number}
    return any(query.text in texts for query in purge.queries)


@settings(max_examples=60)
@given(st.lists(PURGES, max_size=6).flatmap(lambda each: st.permutations(list(enumerate(each, 1)))))
def test_an_entry_is_valid_unless_a_later_purge_names_it(purges: list[tuple[int, Purge]]) -> None:
    log = PurgeLog()
    for generation, purge in purges:
        log.add(generation, purge)
    for answer in ANSWERS:
        for began in range(len(purges) + 1):
            named = any(names(purge, answer) for each, purge in purges if each > began)
            assert log.is_valid(began, answer) is not named


def test_entries_from_before_a_purge_that_is_dropped_are_not_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("idv_redis.purge_log._MAX_USERS", 2)
    log = PurgeLog()
    for generation, name in enumerate(["alice", "c", "d"], 1):
        log.add(generation, Purge(queries=(ByNickname(name),)))
    assert not log.is_valid(0, ANSWERS[0])
    assert not log.is_valid(0, ANSWERS[2])
    assert log.is_valid(1, ANSWERS[2])

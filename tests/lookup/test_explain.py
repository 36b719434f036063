"""The explanation of a lookup: what each backend says, past the cache."""

from __future__ import annotations

import asyncio

import pytest

from support.fakes.clock_and_backends import CardsOnly, FakeBackend
from support.fakes.directories import (
    ALICE,
    BROKEN,
    DOWN,
    QUERY,
    OwnDispatch,
    chain,
    counts,
    directory,
)
from tornado_idv.model import Answer, ByCard


@pytest.mark.parametrize(
    ("answers", "result", "ends"),
    [
        ((None, ALICE, ALICE), "found", ["not_found", "found"]),
        ((None, None), "not_found", ["not_found", "not_found"]),
        ((None, DOWN, ALICE), "undetermined", ["not_found", "unavailable"]),
        ((BROKEN, ALICE), "undetermined", ["broken"]),
        ((), "undetermined", []),
    ],
    ids=["found", "not found", "unavailable", "broken", "no backend"],
)
async def test_backends_are_called_up_to_the_one_that_decides(
    answers: tuple[object, ...], result: str, ends: list[str]
) -> None:
    explanation = await directory(*chain(*answers)).explain(QUERY)
    assert (explanation.result, [each.result for each in explanation.calls]) == (result, ends)


@pytest.mark.parametrize(("last", "result"), [(ALICE, "found"), (None, "undetermined")])
async def test_backend_that_may_be_skipped_leaves_rest_to_others(last: object, result: str) -> None:
    """Without a user, it might have known one."""
    asked = directory(*chain(DOWN, last, on_unavailable="continue"))
    explanation = await asked.explain(QUERY)
    assert explanation.result == result
    assert [each.backend for each in explanation.calls] == ["a", "b"]


async def test_backend_that_does_not_serve_the_query_is_not_called() -> None:
    cards = CardsOnly(None, "cards")
    asked = directory(cards, FakeBackend(ALICE))
    assert [each.backend for each in (await asked.explain(QUERY)).calls] == ["crm"]
    assert counts([cards]) == [0]
    assert [each.backend for each in (await asked.explain(ByCard("4000"))).calls] == [
        "cards",
        "crm",
    ]


@pytest.mark.parametrize(
    ("answer", "result", "end"),
    [
        (Answer(ALICE, "own"), "found", "found"),
        (None, "not_found", "not_found"),
        (KeyError("alice"), "undetermined", "broken"),
    ],
    ids=["found", "not found", "broken"],
)
async def test_plugins_are_called_after_the_backends(answer: object, result: str, end: str) -> None:
    own = OwnDispatch(answer)
    asked = directory(backend := FakeBackend(None), plugins=[own])
    explanation = await asked.explain(QUERY)
    assert explanation.result == result
    assert [each.result for each in explanation.calls] == ["not_found", end]
    backend.source.answer = ALICE
    assert len((await asked.explain(QUERY)).calls) == 1
    assert own.source.asked == 1


async def test_nothing_is_cached_and_the_cache_is_not_read() -> None:
    asked = directory(backend := FakeBackend(None))
    assert (await asked.find(QUERY)).user is None
    backend.source.answer = ALICE
    assert (await asked.explain(QUERY)).result == "found"
    assert (await asked.find(QUERY)).user is None


async def test_backend_that_hangs_ends_with_the_timeout_of_a_lookup() -> None:
    asked = directory(backend := FakeBackend(ALICE, timeout=60), timeout=0.2)
    backend.source.hold()
    explanation = await asyncio.wait_for(asked.explain(QUERY), 5)
    assert explanation.result == "undetermined"
    assert [each.backend for each in explanation.calls] == ["crm"]

"""The explanation of a lookup: what each backend says, past the cache."""

from __future__ import annotations

import asyncio

import pytest

from support.fakes.clock_and_backends import FakeBackend, LoopClock
from support.fakes.directories import (
    ALICE,
    BROKEN,
    DOWN,
    QUERY,
    OwnDispatch,
    chain,
    directory,
)
from tornado_idv.model import Answer


@pytest.mark.parametrize(
    ("answers", "on_unavailable", "result", "ends"),
    [
        ((None, ALICE, ALICE), "fail", "found", ["not_found", "found"]),
        ((None, None), "fail", "not_found", ["not_found", "not_found"]),
        ((None, DOWN, ALICE), "fail", "undetermined", ["not_found", "unavailable"]),
        ((DOWN, ALICE), "continue", "found", ["unavailable", "found"]),
        ((DOWN, None), "continue", "undetermined", ["unavailable", "not_found"]),
        ((BROKEN, ALICE), "continue", "undetermined", ["broken"]),
        ((), "fail", "undetermined", []),
    ],
)
async def test_backends_are_called_up_to_the_one_that_decides(
    answers: tuple[object, ...], on_unavailable: str, result: str, ends: list[str]
) -> None:
    explanation = await directory(*chain(*answers, on_unavailable=on_unavailable)).explain(QUERY)
    assert (explanation.result, [each.result for each in explanation.calls]) == (result, ends)


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
    clock, backend = LoopClock(), FakeBackend(ALICE, timeout=60)
    backend.source.hold()
    explaining = asyncio.create_task(directory(backend, timeout=2).explain(QUERY))
    await asyncio.wait_for(backend.source.begun.wait(), timeout=5)
    clock.forward(2.1)
    explanation = await explaining
    assert explanation.result == "undetermined"
    assert [each.backend for each in explanation.calls] == ["crm"]

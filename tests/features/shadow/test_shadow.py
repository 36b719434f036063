"""A lookup is compared with a shadow once, behind everyone who waits for it."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from support.fakes.clock_and_backends import CardsOnly, FakeBackend, Ticker
from support.fakes.directories import ALICE, DOWN, OTHER_ALICE, QUERY, chain, directory
from support.http.http_server import until
from tornado_idv.errors import LookupFailed, StartError
from tornado_idv.features.shadow import state as shadow_state
from tornado_idv.features.shadow.file import ShadowFile
from tornado_idv.features.shadow.part import compare
from tornado_idv.features.shadow.shadow import Shadow
from tornado_idv.features.shadow.state import ShadowState
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.lookup.directory import Directory
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Answer, User
from tornado_idv.registry import plugin_manager

THIRD_ALICE = User("Max", "4002", "alice")


class Compared:
    """A directory with a shadow, and what was counted of that."""

    def __init__(self, asked: Directory, backend: FakeBackend, **given: Any) -> None:
        self.directory, self.backend, self.counters = asked, backend, Counters()
        identifiers = Identifiers((ProfileSite.parse("https://a.example"),))
        self.shadow = Shadow(backend.options, lambda: backend, identifiers, self.counters, **given)
        self.shadow.start()
        compare(asked, [self.shadow], plugin_manager(entry_points=False))

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.counters.counts["shadow new"])

    async def find(self) -> Answer | None:
        await asyncio.sleep(0)  # the shadow is open then
        with suppress(LookupFailed):
            return await self.directory.find(QUERY)
        return None

    async def results(self) -> dict[str, int]:
        """Look a user up, and return what was counted once that was compared."""
        await self.find()
        await self.end()
        return self.counts

    async def end(self) -> None:
        async with asyncio.timeout(5):
            await asyncio.gather(*self.shadow._tasks)  # noqa: SLF001 - tasks that nothing reports


def new(answer: object = None, **options: Any) -> FakeBackend:
    shadow = {"sample": "100%", "rate": "1000/s", **options.pop("shadow", {})}
    return FakeBackend(answer, "new", shadow=shadow, **options)


@pytest.mark.parametrize(
    ("first", "held", "then", "result"),
    [
        (ALICE, OTHER_ALICE, OTHER_ALICE, "match"),
        (ALICE, OTHER_ALICE, THIRD_ALICE, "unverified"),
        (ALICE, OTHER_ALICE, DOWN, "source_failed"),
        (ALICE, OTHER_ALICE, None, "unverified"),
        # The source may have had a problem until its first lookup ended.
        (None, None, ALICE, "unverified"),
    ],
)
async def test_result_that_the_source_does_not_confirm_is_none(
    first: object, held: object, then: object, result: str
) -> None:
    old, shadow, state = FakeBackend(first), new(held), Mock(ShadowState)
    compared = Compared(directory(old), shadow, state=state)
    gate = shadow.source.hold()
    await compared.find()
    await shadow.source.begun.wait()
    before, old.source.answer = time.time(), then
    gate.set()
    await compared.end()
    assert (old.source.asked, compared.counts) == (2, {result: 1})
    _, comparison, began = state.record.call_args.args
    assert began <= before  # an import since then makes it void
    assert result != "unverified" or comparison.user == first


async def test_confirmation_neither_changes_nor_uses_the_cache() -> None:
    old = FakeBackend(ALICE)
    compared = Compared(directory(old), new(OTHER_ALICE))
    assert await compared.results() == {"differs": 1, "card_number": 1, "plan": 1}
    old.source.answer = OTHER_ALICE
    answer = await compared.find()
    assert answer is not None
    assert answer.user == ALICE
    assert compared.directory.cache.sizes == {"found": 1, "negative": 0}


@pytest.mark.parametrize("asked", [0, 1], ids=["before", "after"])
async def test_problem_before_or_after_a_lookup_is_one_of_the_lookup(asked: int) -> None:
    class Changing(FakeBackend):
        @property
        def problem(self) -> str | None:
            now = self.source.asked, shadow.source.asked
            return "no users yet" if now == (asked, 0) else None

    compared = Compared(directory(Changing(None)), shadow := new(None, shadow={"hits": True}))
    await asyncio.sleep(0)
    compared.shadow.offer(QUERY, Answer(None), cached=True)
    await compared.end()
    assert compared.counts == {"unverified": 1}


class Stale(FakeBackend):
    problem = "a rejected edit"


class StaleCards(CardsOnly):
    problem = "a rejected edit"


class Failing(FakeBackend):
    @property
    def problem(self) -> str | None:
        raise KeyError("alice")


SKIPPED = chain(DOWN, ALICE, on_unavailable="continue")


@pytest.mark.parametrize(
    ("source", "shadow", "result"),
    [
        ([Stale(None)], new(ALICE), "unverified"),
        ([Stale(ALICE)], new(ALICE), "match"),
        ([FakeBackend(None), StaleCards(None)], new(ALICE), "extra"),
        ([FakeBackend(ALICE)], Failing(None, "new", shadow={"sample": "100%"}), "unverified"),
        *((SKIPPED, new(held), "unverified") for held in (ALICE, OTHER_ALICE, None)),
        ([FakeBackend(ALICE)], new(ALICE, match="@b.*"), ""),
    ],
)
async def test_results_of_lookups_that_are_not_believed_or_not_made(
    source: Sequence[FakeBackend], shadow: FakeBackend, result: str
) -> None:
    assert await Compared(directory(*source), shadow).results() == ({result: 1} if result else {})


async def test_callers_who_share_a_lookup_are_answered_before_one_comparison() -> None:
    old, shadow = FakeBackend(ALICE), new(ALICE)
    compared = Compared(directory(old), shadow)
    gate, later = old.source.hold(), shadow.source.hold()
    callers = [asyncio.create_task(compared.find()) for _ in range(5)]
    await old.source.begun.wait()
    gate.set()
    await asyncio.gather(*callers)
    assert compared.counts == {}
    later.set()
    await compared.end()
    assert (shadow.source.asked, compared.counts) == (1, {"match": 1})


@pytest.mark.parametrize(
    ("held", "result", "cached"), [(OTHER_ALICE, "differs", False), (None, "missing", True)]
)
async def test_source_is_asked_by_a_few_comparisons_at_once(
    held: User | None, result: str, *, cached: bool
) -> None:
    old = FakeBackend(ALICE)
    compared = Compared(directory(old), new(held, shadow={"hits": True}))
    old.source.hold()
    for _ in range(7):
        compared.shadow.offer(QUERY, Answer(ALICE), cached=cached)
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert old.source.most_under_way == 4
    assert compared.counts == {"skipped": 3}
    old.source.release()
    await compared.end()
    assert compared.counts[result] == 4


async def test_rate_allows_a_burst_of_one_second() -> None:
    ticker = Ticker()
    shadow = new(ALICE, shadow={"rate": "4/s"})
    compared = Compared(directory(FakeBackend(ALICE)), shadow, timer=ticker)
    await asyncio.sleep(0)

    async def allowed(lookups: int) -> int:
        before = shadow.source.asked
        for _ in range(lookups):
            compared.shadow.offer(QUERY, Answer(ALICE), cached=False)
            await compared.end()
        return shadow.source.asked - before

    assert await allowed(10) == 5
    ticker.now += 0.25
    assert await allowed(10) == 1
    ticker.now += 100
    assert await allowed(10) == 5


async def test_part_of_the_lookups_in_the_sample_is_that_of_chance() -> None:
    shadow = new(ALICE, shadow={"sample": "25%"})
    chances = iter([0.24, 0.25, 0.9, 0.0])
    compared = Compared(directory(FakeBackend(ALICE)), shadow, chance=partial(next, chances))
    await asyncio.sleep(0)
    for _ in range(4):
        compared.shadow.offer(QUERY, Answer(ALICE), cached=False)
    await compared.end()
    assert compared.counts == {"match": 2}


@pytest.mark.parametrize(("hits", "count"), [(False, 2), (True, 5)])
async def test_refreshes_of_cached_answers_are_compared_and_hits_if_wanted(
    count: int, *, hits: bool
) -> None:
    """For each of them the source is asked what it holds now."""
    old = FakeBackend(ALICE)
    compared = Compared(directory(old), new(ALICE, shadow={"hits": hits}))
    for _ in range(4):
        await compared.results()
    await compared.directory._single_flight.refresh(QUERY)  # noqa: SLF001 - lookups that no caller waits for
    await compared.end()
    assert compared.counts == {"match": count}
    assert old.source.asked == count


async def test_failure_of_the_source_is_no_question_to_the_shadow() -> None:
    """Also if a client gets an expired answer in place of the failure."""
    ticker, old, shadow = Ticker(), FakeBackend(ALICE), new(ALICE)
    compared = Compared(directory(old, ticker=ticker), shadow)
    assert await compared.results() == {"match": 1}
    ticker.now += 301
    old.source.answer = DOWN
    answer = await compared.find()
    await compared.end()
    assert (answer and answer.user, compared.counts) == (ALICE, {"match": 1, "source_failed": 1})
    assert shadow.source.asked == 1
    compared = Compared(directory(old := FakeBackend(None)), new(DOWN))
    assert (await compared.results(), old.source.asked) == ({"target_failed": 1}, 1)


@pytest.mark.parametrize(
    ("held", "hits", "expected"),
    [
        (ALICE, False, {}),
        (ALICE, True, {"match": 1}),
        (OTHER_ALICE, True, {"differs": 1, "card_number": 1, "plan": 1}),
    ],
)
async def test_shared_answers_are_compared_as_hits_are(
    held: User, expected: dict[str, int], *, hits: bool
) -> None:
    """The source may hold another user than a shared cache."""
    compared = Compared(directory(FakeBackend(ALICE)), new(held, shadow={"hits": hits}))
    await asyncio.sleep(0)
    compared.shadow.offer(QUERY, Answer(OTHER_ALICE, shared=True), cached=False)
    await compared.end()
    assert compared.counts == expected


async def test_error_of_a_comparison_is_logged_without_the_user(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Identifiers, user: User, __: User) -> None:
        raise KeyError(user.nickname)

    monkeypatch.setattr(Identifiers, "differences", fail)
    compared = Compared(directory(FakeBackend(ALICE)), new(ALICE))
    with caplog.at_level(logging.INFO):
        assert await compared.results() == {}
    (line,) = caplog.messages
    assert line.startswith("shadow new: a comparison failed")
    assert "alice" not in line


async def test_closed_shadow_leaves_nothing_running() -> None:
    shadow = new(None, canary={"nickname": "bird"}, timeout=50)
    compared = Compared(directory(FakeBackend(ALICE)), shadow)
    shadow.source.hold()
    await compared.find()
    await shadow.source.begun.wait()
    assert compared.shadow.guard is not None
    for canary in compared.shadow.guard.canaries.values():
        canary.check()
    await asyncio.sleep(0)
    await compared.shadow.close()
    assert compared.counts == {}
    assert shadow.source.under_way == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_did_not_match_is_compared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no client looks it up, whatever the sample, and apart from the served lookups."""
    for name in ("_INTERVAL", "_MIN_INTERVAL"):
        monkeypatch.setattr(shadow_state, name, 0.01)
    clock = Ticker()
    clock.now = time.time()
    state = ShadowState(tmp_path / "shadow.db", "new", clock)
    old, shadow = FakeBackend(ALICE), new(OTHER_ALICE)
    compared = Compared(directory(old), shadow, state=state, chance=lambda: 0.0)
    await compared.results()
    await until(lambda: bool(differing(tmp_path)))
    clock.now = time.time()
    compared.shadow._chance = lambda: 1.0  # noqa: SLF001 - chance and time of the test
    await compared.shadow.compare_again(state)
    assert compared.counts["differs"] == 1
    old.source.answer, guards = DOWN, (None, *[compared.shadow.guard] * 10)
    for compared.shadow.guard in guards:  # it opens later
        clock.now += 61
        await compared.shadow.compare_again(state)
    assert compared.counts["source_failed"] == 10
    clock.now += 61
    compared.shadow._interval = 1e6  # noqa: SLF001 - as above
    again = asyncio.create_task(compared.shadow.compare_again(state))
    await until(lambda: compared.counts["source_failed"] == 11)
    assert (await asyncio.wait([again], timeout=0))[1]  # the rate is that of the lookups
    again.cancel()
    compared.shadow._interval = 0  # noqa: SLF001 - as above
    (guard,) = compared.directory.guards
    assert (guard.breaker.failures, guard.in_flight) == (0, 0)
    guard.breaker.failures = 5
    old.notify_available(verified=True)  # to this guard, not to that of the comparisons
    assert guard.breaker.failures == 0
    old.source.answer = shadow.source.answer = ALICE
    await compared.shadow.compare_again(state)
    await compared.end()
    assert compared.counts["match"] == 1
    await compared.shadow.close()
    assert (await state.due(0.0, 10), differing(tmp_path)) == ([], [])


def differing(folder: Path) -> Sequence[object]:
    """Return the users that a shadow's file lists, none while there is no such file."""
    try:
        return ShadowFile(folder / "shadow.db", "new").read().differing
    except StartError:
        return ()


async def test_error_of_the_file_is_a_problem_of_the_shadow(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("something else", encoding="utf-8")
    for path, reason in ((file, "file is not a database"), (file / "new.db", "Not a directory")):
        compared = Compared(directory(FakeBackend(ALICE)), new(), state=ShadowState(path, "new"))
        problem = f"{path}: cannot be used: {reason}"
        await until(lambda: compared.shadow.report().problem == problem)  # noqa: B023 - of this turn
        await compared.shadow.close(discard=True)  # which cannot be done

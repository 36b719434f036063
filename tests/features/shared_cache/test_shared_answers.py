"""The shared cache behind the answer cache: what is read from it and stored in it."""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from support.databases.shared_caches import FakeSharedCache, shared_directory
from support.fakes.clock_and_backends import FakeBackend, LoopClock, Ticker, running
from support.fakes.directories import ALICE, DOWN, OTHER_ALICE, QUERY, counts, failure
from support.fakes.snapshots import settings_of
from support.http.http_server import until
from tornado_idv.errors import Broken
from tornado_idv.features.shared_cache.part import SharedCachePart
from tornado_idv.features.shared_cache.tier import SharedTier
from tornado_idv.interfaces.shared import Purge, SharedResult
from tornado_idv.lookup.directory import Directory
from tornado_idv.model import BackendResult, ByCard, Query, SharedAnswer, User


class Replicas:
    """Two directories over one shared cache; ``ticker`` is every clock."""

    def __init__(self, ticker: Ticker) -> None:
        self.cache = FakeSharedCache()
        self.tier = SharedTier(self.cache, timer=ticker, clock=ticker)
        self.backends = [FakeBackend(ALICE) for _ in range(2)]
        self.first, self.second = (
            shared_directory(self.tier, backend, ticker=ticker) for backend in self.backends
        )

    async def stored(self) -> None:
        """Wait until what runs in the background has ended."""
        while self.tier.tasks:
            await asyncio.wait(self.tier.tasks)

    async def find_in_first(self) -> None:
        await self.first.find(QUERY)
        await self.stored()

    async def find_again_in_first(self) -> None:
        """Look up a user who is not in the answer cache."""
        self.first.cache.apply(Purge())
        assert (await self.first.find(QUERY)).user is ALICE
        await self.stored()


@pytest.fixture
def both(ticker: Ticker) -> Replicas:
    return Replicas(ticker)


async def test_layer_is_of_its_settings(both: Replicas, tmp_path: Path) -> None:
    """Services with other settings share no answers."""
    both.cache.open = both.cache.close = calls = AsyncMock()  # type: ignore[method-assign]
    part = SharedCachePart(both.tier, Mock())
    async with part.opened():
        settings = [settings_of(tmp_path, ttl=ttl) for ttl in (300, 301)]
        one, other = [await part.layer(each, both.first.cache) for each in settings]
        assert (calls.await_count, one.scope != other.scope) == (1, True)
        assert [one.accepts(User("Free", card, "alice")) for card in ("4000", "x")] == [True, False]
    assert calls.await_count == 2


async def test_purge_of_another_service_before_the_first_directory_reaches_that(
    ticker: Ticker,
) -> None:
    tier = SharedTier(FakeSharedCache(), timer=ticker, clock=ticker)
    await tier.open()
    tier.cache.purged(Purge())
    first = shared_directory(tier, FakeBackend(ALICE), ticker=ticker)
    assert first.cache.purges == 1
    tier.cache.purged(Purge())
    assert first.cache.purges == 2
    assert shared_directory(tier, FakeBackend(ALICE), ticker=ticker).cache.purges == 0
    await tier.close()


def is_cached(asked: Directory, ticker: Ticker, seconds: float) -> bool:
    """Return whether an answer is still cached in so many seconds."""
    ticker.now += seconds
    return asked.get_cached(QUERY) is not None


class Hanging:
    """A call that never returns."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, *_: object) -> SharedResult:
        self.begun.set()
        await asyncio.sleep(60)
        raise AssertionError


async def test_answer_of_one_replica_serves_another_for_its_remaining_time(
    both: Replicas, ticker: Ticker
) -> None:
    await both.find_in_first()
    ticker.now += 100
    answer = await both.second.find(QUERY)
    assert (answer.user, answer.backend, answer.body) == (ALICE, "crm", b"Free")
    assert counts(both.backends) == [1, 0]
    assert is_cached(both.second, ticker, 199)
    assert not is_cached(both.second, ticker, 2)


async def test_not_found_is_shared_for_its_short_time(both: Replicas, ticker: Ticker) -> None:
    both.backends[0].source.answer = None
    for calls in (1, 2):
        await both.find_in_first()
        assert (await both.second.find(QUERY)).user is None
        assert counts(both.backends) == [calls, 0]
        ticker.now += 31
    assert (await both.second.find(QUERY)).user is ALICE
    assert not both.tier.counted.results["purged"]


@pytest.mark.parametrize(
    "error", [OSError(), Broken("x"), TimeoutError(), asyncio.CancelledError()], ids=repr
)
async def test_a_failing_shared_cache_is_a_miss_until_5_s_after_the_outage(
    both: Replicas, ticker: Ticker, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    both.cache.error = error
    for _ in range(10):
        await both.find_again_in_first()
    assert both.cache.calls == 5
    assert counts(both.backends)[0] == 10
    assert both.tier.counted.results == {"failed": 5, "skipped": 5}
    assert (both.tier.breaker.state, both.tier.problem) == ("open", None)
    for _ in range(120):
        ticker.now += 1
        await both.find_again_in_first()
    assert both.cache.calls < 65
    assert caplog.text.count("shared cache: circuit breaker open after ") == 1
    both.cache.error = None
    ticker.now += 5
    await both.find_again_in_first()
    await both.second.find(QUERY)
    assert counts(both.backends)[1] == 0


async def test_a_probe_that_is_cancelled_lets_the_next_lookup_probe(
    both: Replicas, ticker: Ticker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the shared cache would never be used again."""
    both.cache.error = OSError()
    for _ in range(5):
        await both.find_again_in_first()
    both.cache.error = None
    ticker.now += 10
    both.first.cache.apply(Purge())
    with monkeypatch.context() as patch:
        patch.setattr(both.cache, "get", hanging := Hanging())
        caller = asyncio.create_task(both.first.find(QUERY))
        await hanging.begun.wait()
        assert both.tier.breaker.state == "half_open"
        for task in running(both.first._single_flight):  # noqa: SLF001 - lookups that no caller waits for
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    await both.find_in_first()
    assert both.tier.breaker.state == "closed"


async def test_a_slow_shared_cache_delays_a_lookup_by_its_timeout(both: Replicas) -> None:
    both.cache.get = Hanging()  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        assert (await both.first.find(QUERY)).user is ALICE
    assert both.tier.counted.last_error == "no response in time"


async def test_failures_and_degraded_answers_are_not_shared(ticker: Ticker) -> None:
    cache = FakeSharedCache()
    tier = SharedTier(cache, timer=ticker, clock=ticker)
    down = FakeBackend(DOWN, "a", on_unavailable="continue")
    asked = shared_directory(tier, down, FakeBackend(ALICE, "b"))
    assert (await asked.find(QUERY)).degraded
    await failure(shared_directory(tier, FakeBackend(DOWN)))
    await tier.close()
    assert cache.entries == {}


async def test_stale_answer_of_another_replica_is_used_while_backends_fail(
    both: Replicas, ticker: Ticker
) -> None:
    await both.find_in_first()
    ticker.now += 400
    both.backends[1].source.answer = DOWN
    answer = await both.second.find(QUERY)
    assert (answer.user, answer.stale) == (ALICE, True)
    ticker.now += 501
    await failure(both.second)


async def test_an_answer_that_must_not_be_cached_replaces_a_shared_one(
    both: Replicas, ticker: Ticker
) -> None:
    await both.find_in_first()
    ticker.now += 301
    both.backends[0].source.answer = BackendResult(ALICE, storable=False)
    await both.find_in_first()
    assert both.cache.entries["", QUERY].answer == SharedAnswer(None, None, 1301.0, 1301.0)
    both.backends[1].source.answer = DOWN
    await failure(both.second)


async def test_user_who_is_gone_is_not_shared_by_another_identifier(
    both: Replicas, ticker: Ticker
) -> None:
    await both.find_in_first()
    ticker.now += 200
    await both.first.find(by_card := ByCard(ALICE.card_number))
    await both.stored()
    ticker.now += 101
    both.backends[0].source.answer = None
    for query in (QUERY, by_card):
        assert not (await both.first.find(query)).found
        await both.stored()
    assert both.tier.counted.results["purged"] == 1


async def test_user_who_is_not_found_past_the_cache_is_not_shared(both: Replicas) -> None:
    await both.find_in_first()
    assert (await both.second.find(QUERY)).found
    both.backends[1].source.answer = None
    assert not (await both.second.find_past_cache(QUERY)).found
    await both.stored()
    assert not (await both.second.find(QUERY)).found


@pytest.mark.parametrize("error", [None, OSError()], ids=repr)
async def test_user_who_is_gone_is_not_shared_without_a_read_of_this_user(
    both: Replicas, ticker: Ticker, error: OSError | None
) -> None:
    """The shared cache has only another identifier, or fails."""
    await both.first.find(by_card := ByCard(ALICE.card_number))
    await both.stored()
    ticker.now += 301
    both.backends[0].source.answer, both.cache.error = None, error
    await both.first.find(by_card if error else QUERY)
    both.backends[1].source.answer, both.cache.error = DOWN, None
    await both.stored()
    await failure(both.second, by_card)


async def test_a_purge_is_for_the_shared_answers_too(both: Replicas) -> None:
    """Also one by a backend that sees its data change."""
    for change in (
        lambda: both.first.purge(Purge()),
        lambda: both.first.purge(Purge(queries=(QUERY,))),
        both.backends[0].notify_changed,
    ):
        await both.find_in_first()
        before = both.cache.generation
        both.backends[0].source.answer = OTHER_ALICE
        change()
        # Nothing is read before the purge has arrived.
        assert (await both.first.find(QUERY)).user is OTHER_ALICE
        await both.stored()
        assert both.cache.generation == before + 1
        both.backends[0].source.answer = ALICE
        both.first.cache.apply(Purge())


async def test_a_lookup_that_began_before_a_purge_is_not_shared(both: Replicas) -> None:
    source = both.backends[0].source
    source.hold()
    caller = asyncio.create_task(both.first.find(QUERY))
    await source.begun.wait()
    both.second.purge(Purge())
    await both.stored()
    source.release()
    await caller
    await both.stored()
    both.backends[1].source.answer = OTHER_ALICE
    assert (await both.second.find(QUERY)).user is OTHER_ALICE


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError(), "OSError"), (asyncio.CancelledError(), "raised CancelledError by itself")],
    ids=["error", "cancelled"],
)
async def test_a_purge_that_fails_is_repeated_and_nothing_is_read_meanwhile(
    both: Replicas,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    reason: str,
) -> None:
    monkeypatch.setattr("tornado_idv.features.shared_cache.tier._PURGE_PAUSE", 0.01)
    await both.find_in_first()
    both.cache.error = error
    both.first.purge(Purge())
    await until(lambda: both.tier.counted.results["not_purged"])
    both.backends[0].source.answer = OTHER_ALICE
    assert (await both.first.find(QUERY)).user is OTHER_ALICE
    assert both.tier.breaker.failures == 0  # a call would have failed
    assert both.tier.counted.results["skipped"] == 1
    assert (both.tier.pending_purges, both.tier.problem) == (1, "a purge cannot be delivered")
    assert (both.tier.counted.failing_since, both.tier.counted.last_error) == (1000, reason)
    both.cache.error = None
    await both.stored()
    assert both.cache.generation == 2
    assert f"shared cache: purge failed: {reason};" in caplog.text
    assert (both.tier.pending_purges, both.tier.problem) == (0, None)
    assert both.tier.counted.results["purged"] == 1
    assert both.tier.counted.failing_since is None


async def test_many_purges_in_an_outage_are_few_attempts_and_one_purge_of_everything(
    both: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is kept of them is bounded, and so is the work for one more."""
    monkeypatch.setattr("tornado_idv.features.shared_cache.tier._PURGE_PAUSE", 0.02)
    both.cache.error = OSError()
    for number in range(1001):
        both.first.purge(Purge(queries=(ByCard(str(number)),)))
        await asyncio.sleep(0)
    waiting = asyncio.create_task(both.tier.wait_until_purged())
    await until(lambda: both.tier.counted.results["not_purged"] > 1)
    assert both.tier.pending_purges == 1001
    assert both.cache.calls < 100
    assert caplog.text.count("purge failed") == 1
    both.cache.error = ValueError()
    await until(lambda: "purge failed: ValueError" in caplog.text)
    both.cache.error = None
    both.first.purge(Purge(("crm",)))
    assert await waiting
    assert both.cache.purges == [Purge()]
    assert both.tier.counted.results["purged"] == 1002


async def test_a_purge_is_delivered_only_once_the_shared_cache_has_it(
    both: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tornado_idv.features.shared_cache.tier._PURGE_PAUSE", 0.01)

    def set_timeout(seconds: float) -> None:
        monkeypatch.setattr("tornado_idv.features.shared_cache.tier._PURGE_TIMEOUT", seconds)

    assert await both.tier.wait_until_purged()
    both.first.purge(Purge())
    waiting = asyncio.create_task(both.tier.wait_until_purged())
    await asyncio.sleep(0)
    both.cache.error = OSError()
    both.first.purge(Purge())
    assert await waiting  # the later purge is not waited for
    set_timeout(0.02)
    assert not await both.tier.wait_until_purged()
    set_timeout(10)
    both.cache.error = None
    both.first.purge(Purge())
    assert await both.tier.wait_until_purged()
    assert both.tier.pending_purges == 0
    both.first.purge(Purge())
    generation = both.cache.generation
    await both.tier.close()
    assert (both.cache.generation, caplog.text.count("before the stop")) == (generation + 1, 0)
    both.cache.error = OSError()
    both.first.purge(Purge())
    set_timeout(0.02)
    await both.tier.close()
    assert "shared cache: a purge was not delivered before the stop" in caplog.text


async def test_purges_that_wait_for_another_one_name_no_more_than_they_did(both: Replicas) -> None:
    both.first.purge(Purge(queries=(ByCard("2"),)))
    await asyncio.sleep(0)
    named = [QUERY, ByCard("1"), QUERY]
    for query in named:
        both.first.purge(Purge(queries=(query,)))
    for name in ("crm", "files"):
        both.first.purge(Purge((name,)))
    await both.stored()
    both.first.purge(Purge(queries=(QUERY,)))
    both.first.purge(Purge())
    await both.stored()
    assert both.cache.purges == [
        Purge(queries=(ByCard("2"),)),
        Purge(("crm", "files"), (QUERY, ByCard("1"))),
        Purge(),
    ]


async def test_what_was_read_before_a_purge_that_waits_is_not_used(both: Replicas) -> None:
    await both.find_in_first()
    both.backends[1].source.answer = OTHER_ALICE
    get, reading, delivered = both.cache.get, asyncio.Event(), asyncio.Event()

    async def slow_get(*arguments: Any) -> SharedResult:
        result = await get(*arguments)
        reading.set()
        await asyncio.sleep(0)
        return result

    async def slow_purge(_: Purge) -> None:
        await delivered.wait()

    both.cache.get, both.cache.purge = slow_get, slow_purge  # type: ignore[method-assign]
    caller = asyncio.create_task(both.second.find(QUERY))
    await reading.wait()
    both.tier.purge(Purge())
    assert (await caller).user is OTHER_ALICE
    delivered.set()


async def test_only_a_read_that_fails_is_a_failure_of_the_shared_cache(both: Replicas) -> None:
    """An answer that is not stored makes none wrong or late."""
    both.cache.put = Hanging()  # type: ignore[method-assign]
    await both.find_in_first()
    assert both.tier.counted.results == {"miss": 1, "not_stored": 1}
    assert both.tier.counted.failing_since is None
    both.cache.error = OSError()
    await both.second.find(QUERY)
    assert (both.tier.counted.failing_since, both.tier.counted.last_error) == (1000, "OSError")
    both.cache.error = None
    both.second.cache.apply(Purge())
    await both.second.find(QUERY)
    assert both.tier.counted.failing_since is None


async def test_a_stale_answer_that_is_purged_while_it_is_read_is_not_kept(
    both: Replicas, ticker: Ticker
) -> None:
    await both.find_in_first()
    ticker.now += 400
    get = both.cache.get

    async def get_and_purge(*arguments: Any) -> SharedResult:
        result = await get(*arguments)
        both.cache.purged(Purge())
        return result

    both.cache.get = get_and_purge  # type: ignore[method-assign]
    both.backends[1].source.answer = DOWN
    await failure(both.second)


async def test_a_purge_by_another_process_drops_what_is_cached_here(both: Replicas) -> None:
    await both.second.find(QUERY)
    both.cache.purged(Purge(backends=("other",)))
    assert both.second.get_cached(QUERY) is not None
    for purge in (Purge(), Purge(backends=("crm",)), Purge(queries=(ByCard("4000"),))):
        await both.second.find(QUERY)
        both.cache.purged(purge)
        assert both.second.get_cached(QUERY) is None


@pytest.mark.parametrize(
    ("query", "stored"),
    [
        (QUERY, SharedAnswer(ALICE, "another", 9999.0, 9999.0)),
        (QUERY, SharedAnswer(ALICE, "crm", 1000.0, 1000.0)),
        (ByCard("77"), SharedAnswer(ALICE, "crm", 9999.0, 9999.0)),
    ],
    ids=["backend", "expired", "user"],
)
async def test_an_entry_that_does_not_fit_is_a_miss(
    both: Replicas, query: Query, stored: SharedAnswer
) -> None:
    both.cache.entries["", query] = SharedResult("1", stored)
    both.backends[0].source.answer = None
    assert (await both.first.find(query)).user is None
    assert counts(both.backends) == [1, 0]


@pytest.mark.parametrize(("user", "seconds"), [(ALICE, 301), (None, 31)])
async def test_a_clock_that_is_ahead_or_behind_does_not_prolong_a_life(
    both: Replicas, ticker: Ticker, user: User | None, seconds: float
) -> None:
    stored = SharedAnswer(user, "crm" if user else None, 9999.0, 9999.0)
    both.cache.entries["", QUERY] = SharedResult("1", stored)
    assert (await both.second.find(QUERY)).user == user
    assert counts(both.backends) == [0, 0]
    assert not is_cached(both.second, ticker, seconds)
    both.cache.entries["", QUERY] = SharedResult("1", SharedAnswer(ALICE, "crm", 0.0, 9999.0))
    both.backends[1].source.answer = DOWN
    assert (await both.second.find(QUERY)).stale
    both.cache.entries.clear()
    ticker.now += 601
    await failure(both.second)


async def test_not_found_is_never_served_stale(both: Replicas) -> None:
    """Nor is it kept for that: in the shared cache it ends with its time."""
    both.backends[0].source.answer = None
    await both.find_in_first()
    stored = both.cache.entries["", QUERY].answer
    assert stored == SharedAnswer(None, None, 1030.0, 1030.0)
    both.cache.entries["", QUERY] = SharedResult("1", SharedAnswer(None, None, 0.0, 9999.0))
    both.backends[1].source.answer = DOWN
    await failure(both.second)


async def test_a_user_that_this_directory_does_not_accept_is_a_miss(
    both: Replicas, ticker: Ticker
) -> None:
    """Another process may have other patterns of nicknames."""
    await both.find_in_first()
    backend = FakeBackend(OTHER_ALICE)
    strict = shared_directory(both.tier, backend, ticker=ticker, accepts=lambda user: user != ALICE)
    assert (await strict.find(QUERY)).user is OTHER_ALICE


async def test_a_refresh_ahead_calls_the_backend(both: Replicas, ticker: Ticker) -> None:
    """The shared answer is as old as the one that is to be refreshed."""
    await both.find_in_first()
    ticker.now += 250
    source = both.backends[0].source
    source.hold()
    both.first.get_cached(QUERY)
    await asyncio.wait_for(source.begun.wait(), timeout=5)
    both.cache.entries.clear()
    source.release()
    await until(lambda: both.cache.entries)
    await both.second.find(QUERY)
    assert counts(both.backends) == [2, 0]


async def test_a_refresh_ahead_uses_what_another_replica_refreshed(
    both: Replicas, ticker: Ticker
) -> None:
    """If it is fresh for longer than the answer here, which is refreshed in its last 60 s."""
    await both.find_in_first()
    ticker.now += 100
    both.cache.entries.clear()
    await both.second.find(QUERY)
    await both.stored()
    ticker.now += 150
    both.first.get_cached(QUERY)
    await until(lambda: both.first.cache.counters.refreshes["ok"])
    assert counts(both.backends) == [1, 1]
    assert is_cached(both.first, ticker, 149)
    assert not is_cached(both.first, ticker, 1)


async def test_stop_needs_no_purge_that_ends_when_it_is_cancelled(
    ticker: Ticker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tornado_idv.features.shared_cache.tier._PURGE_PAUSE", 0.0)

    async def purge(_: Purge) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        raise OSError

    clock, both = LoopClock(), Replicas(ticker)
    both.cache.purge = purge  # type: ignore[method-assign]
    both.first.purge(Purge())
    await clock.advance(0.5)
    closing = asyncio.create_task(both.tier.close())
    await clock.advance(0.6)  # the purge is repeated
    await until(lambda: both.tier.counted.results["not_purged"] == 1)
    await clock.advance(0.5)
    await asyncio.wait_for(closing, 5)
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("error", [OSError, asyncio.CancelledError])
async def test_a_cache_that_fails_to_close_is_logged(
    both: Replicas, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    async def fail() -> None:
        raise error

    both.cache.close = fail  # type: ignore[method-assign]
    await both.tier.close()
    assert [each.levelno for each in caplog.records] == [logging.ERROR]

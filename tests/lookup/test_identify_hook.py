"""Plugins that answer by themselves, through the hook ``idv_identify``."""

import asyncio
import logging

import pytest

from support.fakes.clock_and_backends import FakeBackend, LoopClock, Ticker, running
from support.fakes.directories import ALICE, QUERY, OwnDispatch, begin, directory, failure, lifetime
from tornado_idv.errors import Broken, Unavailable
from tornado_idv.interfaces.hookspecs import hookimpl
from tornado_idv.model import Answer, Query

ERRORS = (KeyError("alice"), SystemExit(3), TimeoutError(), asyncio.CancelledError())


async def test_a_plugin_may_answer_by_itself_after_the_backends() -> None:
    ticker = Ticker()
    backend = FakeBackend(None, cache_ttl=3)
    own = OwnDispatch(Answer(ALICE, "own"))
    asked = directory(backend, plugins=[own], ticker=ticker)
    assert (await asked.find(QUERY)).backend == "own"
    assert await lifetime(ticker, asked, backend) == 300


async def test_a_plugin_is_called_only_if_what_is_before_it_did_not_find_the_user() -> None:
    class Rude:
        @hookimpl(tryfirst=True)
        async def idv_identify(self, query: Query) -> Answer:
            raise KeyError(query.text)

    found = directory(FakeBackend(ALICE), plugins=[Rude()])
    assert (await found.find(QUERY)).user == ALICE
    first, own = OwnDispatch(KeyError("alice")), OwnDispatch(Answer(ALICE, "own"))
    assert (await directory(plugins=[first, own]).find(QUERY)).backend == "own"
    assert (first.source.asked, own.source.asked) == (0, 1)


async def test_a_degraded_answer_of_a_plugin_stays_degraded() -> None:
    """So the cache keeps it only for ``cache.degraded_ttl``."""
    own = OwnDispatch(Answer(ALICE, "own", degraded=True))
    assert (await directory(plugins=[own]).find(QUERY)).degraded


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        *((error, f"failed with {type(error).__name__}") for error in ERRORS),
        *((each, "returned something other than an Answer") for each in (ALICE, "alice", False)),
    ],
)
async def test_a_plugin_s_coroutine_that_gives_no_answer_is_broken(
    caplog: pytest.LogCaptureFixture, answer: object, failed: str
) -> None:
    """Also with what would end the event loop, or be taken for a timeout of the lookup."""
    reported = await failure(directory(plugins=[OwnDispatch(answer)]))
    assert isinstance(reported, Broken)
    assert reported.reason.endswith(f": idv_identify {failed}")
    assert {record.levelno for record in caplog.records} <= {logging.ERROR}
    assert bool(caplog.records) == isinstance(answer, BaseException)
    assert "alice" not in caplog.text


class Locked(Unavailable):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"locked, code {code}")
        self.code = code


@pytest.mark.parametrize("of_backend", [False, True], ids=["hook", "backend"])
async def test_failure_of_a_plugin_s_own_type_is_reported(
    caplog: pytest.LogCaptureFixture, *, of_backend: bool
) -> None:
    if of_backend:
        asked = directory(FakeBackend(Locked(code=5)))
    else:
        asked = directory(plugins=[OwnDispatch(Locked(code=5))])
    for _ in range(2):
        error = await failure(asked)
        assert isinstance(error, Locked)
        assert (error.reason, error.code) == ("locked, code 5", 5)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * of_backend


async def test_answer_that_cannot_be_stored_fails_at_once() -> None:
    """It may be of a plugin that is not typed."""
    answer = Answer(ALICE, "own", ttl="60")  # type: ignore[arg-type]
    asked = directory(plugins=[OwnDispatch(answer)])
    with pytest.raises(TypeError):
        await asyncio.wait_for(asked.find(QUERY), 5)


async def test_hanging_hook_is_cancelled_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    clock, own = LoopClock(), OwnDispatch(Answer(ALICE, "own"))
    own.source.hold()
    asked = directory(plugins=[own], timeout=2)
    earliest = clock() + 2
    caller = await begin(asked, own.source)
    assert earliest <= own.deadline < earliest + 60
    (lookup,) = running(asked._single_flight)  # noqa: SLF001 - lookups that no caller waits for
    clock.forward(2.1)
    with pytest.raises(Unavailable, match="no answer within 2 s"):
        await caller
    await asyncio.wait([lookup], timeout=1)
    assert lookup.done()
    assert own.source.under_way == 0
    assert not caplog.records  # the plugin has no defect


async def test_cancelled_lookup_is_no_failure_of_a_plugin(caplog: pytest.LogCaptureFixture) -> None:
    own = OwnDispatch(Answer(ALICE, "own"))
    own.source.hold()
    asked = directory(plugins=[own])
    caller = await begin(asked, own.source)
    (lookup,) = running(asked._single_flight)  # noqa: SLF001 - lookups that no caller waits for
    lookup.cancel()
    await asyncio.wait([lookup, caller], timeout=5)
    assert (lookup.cancelled(), caller.cancelled()) == (True, True)
    assert not caplog.records

"""Regressions that neither the state machine nor the other tests of lookups detect."""

import asyncio
import logging
from collections.abc import Callable, Iterator

import pytest

from support.model.lookup_machine import TickedLoop
from support.model.recording_backends import Record, RecordingBackend
from support.model.strategies import Kind
from tornado_idv.errors import Unavailable
from tornado_idv.lookup.cache import AnswerCache, CacheLimits
from tornado_idv.lookup.directory import Directory
from tornado_idv.model import Answer, ByNickname, User
from tornado_idv.registry import plugin_manager

ALICE = User("Free", "1", "alice")
PATIENT = Kind(timeout=60.0)
ONE_AT_A_TIME = Kind(timeout=60.0, max_concurrent=1)


MakeHarness = Callable[..., "Harness"]


class Harness:
    """A directory over one backend, on a loop whose clock the test sets.

    ``outcomes`` has the outcome of each call.
    """

    def __init__(self, kind: Kind = PATIENT) -> None:
        self.loop = TickedLoop()
        self.outcomes: list[str] = []
        record = Record(self.loop.time)
        self.backend = RecordingBackend(kind.options("crm"), record, kind.serves)
        self.backend.users = {"alice": ALICE}
        self.directory = Directory(
            plugin_manager(entry_points=False, plugins=[record]),
            [self.backend],
            AnswerCache(CacheLimits(), self.loop.time),
            lambda user: b"",
            accepts=lambda user: True,
            on_backend_result=lambda call: self.outcomes.append(call.outcome),
        )

    def find(self, nickname: str = "alice") -> asyncio.Task[Answer]:
        caller = self.loop.create_task(self.directory.find(ByNickname(nickname)))
        self.turn()
        return caller

    def advance_to(self, seconds: float) -> None:
        self.loop.now = TickedLoop.now + seconds
        self.turn()

    def turn(self) -> None:
        self.loop.run_until_complete(_turns())


@pytest.fixture
def make_harness() -> Iterator[MakeHarness]:
    """Yield a function that makes a harness; its running lookups are completed at the end."""
    made: list[Harness] = []

    def make(*args: object, **options: object) -> Harness:
        made.append(Harness(*args, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for harness in made:
        harness.backend.release()
        harness.advance_to(100)
        harness.loop.close()


async def _turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def test_default_lookup_timeout_is_two_seconds(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness()
    harness.backend.hangs = True
    caller = harness.find()
    harness.advance_to(1.99)
    assert not caller.done()
    harness.advance_to(2.0)
    assert isinstance(caller.exception(), Unavailable)


def test_backend_timeout_equal_to_the_request_timeout_is_reported_as_its_own(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness(Kind(timeout=2.0))
    harness.backend.hangs = True
    caller = harness.find()
    harness.advance_to(2.0)
    assert isinstance(caller.exception(), Unavailable)
    assert harness.outcomes == ["no answer within 2 s"]


def test_wait_for_a_permit_ends_before_the_request(make_harness: MakeHarness) -> None:
    harness = make_harness(ONE_AT_A_TIME)
    harness.backend.hangs = True
    callers = [harness.find("alice"), harness.find("bob")]
    harness.advance_to(1.96)
    assert [caller.done() for caller in callers] == [False, True]
    callers[0].cancel()
    assert "timed out in its queue" in str(callers[1].exception())


def test_queue_has_its_full_length_again_after_waiters_timed_out(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness(ONE_AT_A_TIME)
    for nicknames in (("alice", "bob", "carol"), ("dave", "eve", "frank")):
        harness.backend.hangs = True
        callers = [harness.find(nickname) for nickname in nicknames]
        assert [caller.done() for caller in callers] == [False, False, True]
        assert "its queue is full" in str(callers[2].exception())
        harness.backend.release()
        harness.turn()
        assert all(caller.done() for caller in callers)


def test_backend_that_never_failed_logs_no_recovery(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness = make_harness()
    with caplog.at_level(logging.INFO, "tornado_idv"):
        assert harness.find().result().found
    assert [each for each in caplog.messages if "again" in each] == []

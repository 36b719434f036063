"""Small facts that neither the state machine nor the other tests of lookups would miss."""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator, Sequence

import pytest

from support.model.lookup_machine import TickedLoop
from support.model.recording_backends import Record, Trouble, Witness
from support.model.strategies import Kind
from tornado_idv.errors import Broken, Unavailable
from tornado_idv.hookspecs import hookimpl
from tornado_idv.lookup.cache import AnswerCache, CacheLimits
from tornado_idv.lookup.directory import Directory
from tornado_idv.model import Answer, ByNickname, Query, User
from tornado_idv.registry import plugin_manager

ALICE = User("Free", "1", "alice")
PATIENT = Kind(timeout=60.0)
ONE_AT_A_TIME = Kind(timeout=60.0, max_concurrent=1)


Staged = Callable[..., "Stage"]


class Observer:
    """Raises for each lookup."""

    @hookimpl
    def idv_lookup_finished(self, query: Query) -> None:
        raise KeyError(query)


class Intruder:
    """A plugin that takes part in the dispatch and answers what is no answer."""

    @hookimpl
    async def idv_identify(self) -> str:
        return "alice"


class Stage:
    """A directory over one backend, on a loop whose time a test moves.

    ``said`` has the outcome of each call.
    """

    def __init__(self, kind: Kind = PATIENT, plugins: Sequence[object] = ()) -> None:
        self.loop = TickedLoop()
        self.unhandled: list[str] = []
        self.loop.set_exception_handler(lambda _, told: self.unhandled.append(told["message"]))
        self.said: list[str] = []
        record = Record(self.loop.time)
        self.backend = Witness(kind.options("crm"), record, kind.serves)
        self.backend.users = {"alice": ALICE}
        self.directory = Directory(
            plugin_manager(entry_points=False, plugins=[record, *plugins]),
            [self.backend],
            AnswerCache(CacheLimits(), self.loop.time),
            lambda user: b"",
            accepts=lambda user: True,
            on_backend_result=lambda asked: self.said.append(asked.outcome),
        )

    def find(self, nickname: str = "alice") -> asyncio.Task[Answer]:
        caller = self.loop.create_task(self.directory.find(ByNickname(nickname)))
        self.turn()
        return caller

    def go_on_to(self, seconds: float) -> None:
        self.loop.now = TickedLoop.now + seconds
        self.turn()

    def turn(self) -> None:
        self.loop.run_until_complete(_turns())


@pytest.fixture
def staged() -> Iterator[Staged]:
    """Makes a stage; what is left of it in the end goes on to its end."""
    made: list[Stage] = []

    def make(*args: object, **options: object) -> Stage:
        made.append(Stage(*args, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for stage in made:
        stage.backend.release()
        stage.go_on_to(100)
        stage.loop.close()


async def _turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def test_a_lookup_takes_two_seconds_at_most_if_nothing_else_is_said(staged: Staged) -> None:
    stage = staged()
    stage.backend.hangs = True
    caller = stage.find()
    stage.go_on_to(1.99)
    assert not caller.done()
    stage.go_on_to(2.0)
    assert isinstance(caller.exception(), Unavailable)


def test_a_backend_with_as_much_time_as_the_request_has_is_itself_too_slow(staged: Staged) -> None:
    stage = staged(Kind(timeout=2.0))
    stage.backend.hangs = True
    caller = stage.find()
    stage.go_on_to(2.0)
    assert isinstance(caller.exception(), Unavailable)
    assert stage.said == ["no answer within 2 s"]


def test_a_wait_for_a_permit_ends_before_the_request(staged: Staged) -> None:
    stage = staged(ONE_AT_A_TIME)
    stage.backend.hangs = True
    callers = [stage.find("alice"), stage.find("bob")]
    stage.go_on_to(1.96)
    assert [caller.done() for caller in callers] == [False, True]
    callers[0].cancel()
    assert "timed out in its queue" in str(callers[1].exception())


def test_the_queue_has_its_full_length_again_after_waiters_timed_out(staged: Staged) -> None:
    stage = staged(ONE_AT_A_TIME)
    for nicknames in (("alice", "bob", "carol"), ("dave", "eve", "frank")):
        stage.backend.hangs = True
        callers = [stage.find(nickname) for nickname in nicknames]
        assert [caller.done() for caller in callers] == [False, False, True]
        assert "its queue is full" in str(callers[2].exception())
        stage.backend.release()
        stage.turn()
        assert all(caller.done() for caller in callers)


def test_letters_of_a_match_are_ascii_letters(staged: Staged) -> None:
    stage = staged(Kind(match=r"@\w+"))
    stage.backend.users["ünal"] = User("Free", "2", "ünal")
    assert stage.find("alice").result().found
    assert not stage.find("ünal").result().found


def test_a_failure_without_waiters_is_no_warning(staged: Staged) -> None:
    stage = staged()
    stage.backend.hangs = True
    stage.find().cancel()
    stage.backend.trouble = Trouble.UNAVAILABLE
    stage.backend.release()
    stage.turn()
    gc.collect()
    assert stage.unhandled == []


def test_a_backend_that_never_failed_does_not_answer_again(
    staged: Staged, caplog: pytest.LogCaptureFixture
) -> None:
    stage = staged()
    with caplog.at_level(logging.INFO, "tornado_idv"):
        assert stage.find().result().found
    assert [each for each in caplog.messages if "again" in each] == []


def test_an_observer_that_fails_is_logged_with_the_kind_of_its_error_last(
    staged: Staged, caplog: pytest.LogCaptureFixture
) -> None:
    stage = staged(plugins=[Observer()])
    with caplog.at_level(logging.ERROR, "tornado_idv"):
        assert stage.find().result().found
    (message,) = caplog.messages
    first, *_, last = message.splitlines()
    assert (first, last) == ("an observer of lookups failed:", "KeyError")


def test_a_plugin_that_returns_no_answer_is_broken(staged: Staged) -> None:
    failure = staged(plugins=[Intruder()]).find("bob").exception()
    assert isinstance(failure, Broken)
    assert failure.reason == "a plugin's idv_identify returned something other than an Answer"

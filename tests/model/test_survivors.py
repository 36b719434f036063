"""Small facts that neither the state machine nor the other tests of lookups would miss."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from lookups import TickedLoop
from setups import Kind
from witnesses import Record, Witness

from tornado_idv.cache import AnswerCache, CacheLimits
from tornado_idv.directory import Directory
from tornado_idv.errors import Broken, Unavailable
from tornado_idv.hookspecs import hookimpl
from tornado_idv.model import Answer, ByNickname, Query, User
from tornado_idv.registry import plugin_manager

ALICE = User("Free", "1", "alice")
QUERY = ByNickname("alice")


class Observer:
    """Fails whenever it is told of a lookup."""

    @hookimpl
    def idv_lookup_finished(self, query: Query) -> None:
        raise KeyError(query)


class Intruder:
    """A plugin that takes part in the dispatch and answers what is no answer."""

    @hookimpl
    async def idv_identify(self) -> str:
        return "alice"


class Stage:
    """A directory over one backend, on a loop whose time a test moves."""

    def __init__(self, plugins: Sequence[object] = ()) -> None:
        self.loop = TickedLoop()
        record = Record(self.loop.time)
        kind = Kind(timeout=60.0)
        self.backend = Witness(kind.options("crm"), record, kind.serves)
        self.backend.users = {"alice": ALICE}
        self.directory = Directory(
            plugin_manager(entry_points=False, plugins=[record, *plugins]),
            [self.backend],
            AnswerCache(CacheLimits(), self.loop.time),
            lambda user: b"",
            accepts=lambda user: True,
        )

    def find(self) -> asyncio.Task[Answer]:
        return self.loop.create_task(self.directory.find(QUERY))

    def go_on_to(self, seconds: float) -> None:
        self.loop.now = 1000.0 + seconds
        self.loop.run_until_complete(_turns())

    def close(self) -> None:
        self.loop.close()


async def _turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def test_a_lookup_takes_two_seconds_at_most_if_nothing_else_is_said() -> None:
    stage = Stage()
    stage.backend.hangs = True
    caller = stage.find()
    stage.go_on_to(0)
    stage.go_on_to(1.99)
    assert not caller.done()
    stage.go_on_to(2.0)
    assert isinstance(caller.exception(), Unavailable)
    stage.close()


def test_an_observer_that_fails_is_logged_with_the_kind_of_its_error_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage([Observer()])
    with caplog.at_level(logging.ERROR):
        stage.find()
        stage.go_on_to(0)
    (message,) = caplog.messages
    first, *_, last = message.splitlines()
    assert (first, last) == ("an observer of lookups failed:", "KeyError")
    stage.close()


def test_a_plugin_that_answers_what_is_no_answer_is_told_as_that() -> None:
    stage = Stage([Intruder()])
    stage.backend.users = {}
    caller = stage.find()
    stage.go_on_to(0)
    failure = caller.exception()
    assert isinstance(failure, Broken)
    assert failure.reason == "a plugin's idv_identify answered what is no found answer"
    stage.close()

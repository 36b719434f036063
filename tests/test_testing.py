"""The conformance suite passes an honest backend, and fails each backend that lies."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import pytest

from support.fakes.clock_and_backends import LoopClock
from tornado_idv.errors import Broken, StartError, Unavailable
from tornado_idv.interfaces.backend import AnyBackend, Backend, BackendOptions
from tornado_idv.kit.testing import BackendConformance, make_backend
from tornado_idv.model import BackendResult, ByNickname, Query, Step, User

SUITE = BackendConformance()
Matches = Callable[[Collection[str], str], bool]
"""Whether a user with these texts, such as "@alice", fits the text of a query."""


class Empty(Backend[BackendOptions]):
    async def find(self, query: Query) -> User | None:
        return None


def exactly(texts: Collection[str], query: str) -> bool:
    return query in texts


class Honest(Backend[BackendOptions]):
    """Knows the users it is given, and says so when it cannot be asked."""

    def __init__(
        self, users: Sequence[User] | None, matches: Matches = exactly, event: str = ""
    ) -> None:
        super().__init__(make_backend(Empty, Path()).options)
        self.users, self.matches, self.event = users, matches, event

    async def open(self) -> None:
        if self.event:  # a call that blocks
            sys.audit(self.event, os.devnull)

    async def find(self, query: Query) -> User | None:
        if self.users is None:
            raise Unavailable("down")
        users = map(self.clean, self.users)
        found = [user for user in users if self.matches(self.texts(user), query.text)]
        if len(found) > 1:
            raise Broken("two users")
        return found[0] if found else None

    def clean(self, user: User) -> User:
        nickname = user.nickname.removeprefix("@")
        return User(user.plan, user.card_number, nickname, user.profile_url)

    def texts(self, user: User) -> Collection[str]:
        is_folded = self.options.folds_nicknames
        return f"@{user.nickname.lower() if is_folded else user.nickname}", user.card_number


def ignoring_case(texts: Collection[str], query: str) -> bool:
    return query.lower() in map(str.lower, texts)


def without_zeros(texts: Collection[str], query: str) -> bool:
    return query.lstrip("0") in [text.lstrip("0") for text in texts]


def by_beginning(texts: Collection[str], query: str) -> bool:
    return any(text.startswith(query) for text in texts)


def with_wild_cards(texts: Collection[str], query: str) -> bool:
    return query == "@%" or query in texts


def in_every_column(texts: Collection[str], query: str) -> bool:
    return query.removeprefix("@") in [text.removeprefix("@") for text in texts]


def not_by_card(texts: Collection[str], query: str) -> bool:
    return query.startswith("@") and query in texts


class ForgetsToFold(Honest):
    def texts(self, user: User) -> Collection[str]:
        return f"@{user.nickname}", user.card_number


class TakesTheFirst(Honest):
    async def find(self, query: Query) -> User | None:
        users = map(self.clean, self.users or ())
        return next((user for user in users if query.text in self.texts(user)), None)


class KeepsAt(Honest):
    def clean(self, user: User) -> User:
        return user


class ExplainsNoCards(Honest):
    async def explain(self, query: Query, steps: list[Step]) -> User | BackendResult | None:
        steps.append(Step("query", "a nickname"))
        return await self.find(query) if isinstance(query, ByNickname) else None


class SleepsInTheEventLoop(Honest):
    async def find(self, query: Query) -> User | None:
        time.sleep(0)  # noqa: ASYNC251
        return await super().find(query)


class RefusesToOpen(Honest):
    async def open(self) -> None:
        await asyncio.to_thread(time.sleep, 0)  # blocks no event loop
        users = self.users or ()
        texts = {each for user in users for each in self.texts(self.clean(user))}
        has_at = any(each.nickname.startswith("@") for each in users)
        if self.users is None or has_at or len(texts) < 2 * len(users):
            raise StartError("no such file, or an invalid one")


class NoneWhenFailing(Honest):
    async def find(self, query: Query) -> User | None:
        return await super().find(query) if self.users is not None else None


class ForgetsProfileUrls(Honest):
    async def find(self, query: Query) -> User | None:
        user = await super().find(query)
        return user and User(user.plan, user.card_number, user.nickname)


class FailsWhenEmpty(Honest):
    async def find(self, query: Query) -> User | None:
        if not self.users:
            raise Unavailable("no users")
        return await super().find(query)


class SharesOneCursor(Honest):
    async def find(self, query: Query) -> User | None:
        self.query = query
        others_had_a_turn = asyncio.Event()
        asyncio.get_running_loop().call_soon(others_had_a_turn.set)
        await others_had_a_turn.wait()
        return await super().find(self.query)


class OpensOnce(Honest):
    opened: set[Sequence[User]] = set()  # noqa: RUF012 shared on purpose: that is the fault

    async def open(self) -> None:
        if self.users is not None and tuple(self.users) in self.opened:
            raise StartError("locked")
        self.opened.add(tuple(self.users or ()))


class FindsTheCanaryInNoSource(Honest):
    async def find(self, query: Query) -> User | None:
        if self.options.canary is not None:
            self.users = SUITE.users
        return await super().find(query)


FOUND_BY_NICKNAME = "test_a_user_is_found_by_nickname"
FOUND_BY_CARD = "test_a_user_is_found_by_card"
ABSENT = "test_an_absent_user_is_not_known_here"
AT_ONCE = "test_lookups_at_once_do_not_mix_up_users"
TWICE = "test_opening_and_closing_twice_works"
TWO_USERS = "test_two_users_of_one_name_are_an_error"
BLOCKS = "test_nothing_blocks_the_event_loop"
FAILING = "test_a_failing_source_is_never_not_found"
CANARY = "test_absent_user_is_believed_only_while_the_canary_is_found"
TAIL = "test_a_source_that_lost_its_tail_is_never_not_found"

LIARS: dict[Callable[[Sequence[User] | None], AnyBackend], set[str]] = {
    partial(Honest, matches=ignoring_case): {ABSENT},
    partial(Honest, matches=without_zeros): {ABSENT},
    partial(Honest, matches=by_beginning): {ABSENT, FOUND_BY_CARD},
    partial(Honest, matches=with_wild_cards): {ABSENT},
    partial(Honest, matches=in_every_column): {ABSENT},
    partial(Honest, matches=not_by_card): {FOUND_BY_CARD, TWO_USERS, CANARY},
    NoneWhenFailing: {FAILING},
    ForgetsProfileUrls: {FOUND_BY_NICKNAME, FOUND_BY_CARD, AT_ONCE},
    FailsWhenEmpty: {"test_an_empty_source_has_no_users"},
    FindsTheCanaryInNoSource: {CANARY},
    SharesOneCursor: {AT_ONCE},
    TakesTheFirst: {TWO_USERS, FAILING},
    KeepsAt: {"test_a_nickname_stored_with_at_is_found_or_an_error"},
    ForgetsToFold: {"test_a_nickname_in_another_case_is_found_if_case_is_folded"},
    ExplainsNoCards: {"test_explain_gives_the_result_of_find"},
    partial(Honest, event="open"): {BLOCKS},
    partial(Honest, event="sqlite3.connect"): {BLOCKS},
    partial(Honest, event="subprocess.Popen"): {BLOCKS},
    partial(Honest, event="socket.getaddrinfo"): {BLOCKS},
    SleepsInTheEventLoop: {BLOCKS},
}
TESTS = {name for name in dir(SUITE) if name.startswith("test_")} - {TAIL}


async def failed(backend: Callable[[Sequence[User] | None], AnyBackend]) -> set[str]:
    names = set()
    for name in TESTS:
        test = getattr(SUITE, name)
        run = partial(test, backend(None) if name == FAILING else backend)
        marks = getattr(test, "pytestmark", ())
        runs = [partial(run, query) for query in marks[0].args[1]] if marks else [run]
        for each in runs:
            try:
                await each()
            except (AssertionError, pytest.fail.Exception, Broken, Unavailable, StartError):
                names.add(name)
    return names


@pytest.mark.parametrize("backend", [Honest, RefusesToOpen])
async def test_an_honest_backend_passes(backend: type[Honest]) -> None:
    assert await failed(backend) == set()


@pytest.mark.parametrize(("backend", "names"), LIARS.items())
async def test_a_backend_that_lies_fails(
    backend: Callable[[Sequence[User] | None], AnyBackend], names: set[str]
) -> None:
    assert await failed(backend) == names


def test_each_test_of_the_suite_is_failed_by_a_backend() -> None:
    assert {TWICE}.union(*LIARS.values()) == TESTS


async def test_a_backend_that_keeps_its_source_locked_fails() -> None:
    OpensOnce.opened.clear()
    assert TWICE in await failed(OpensOnce)


async def test_a_backend_that_takes_a_lost_tail_for_an_absence_fails() -> None:
    test = getattr(SUITE, TAIL)
    for backend in (None, Honest(None), RefusesToOpen(None), Honest(BackendConformance.users)):
        await test(backend)
    for lost in (not_by_card, lambda texts, query: query[0] != "@" and query in texts):
        liar = Honest(SUITE.users, matches=lost)
        with pytest.raises(AssertionError):
            await test(liar)


class Silent(Honest):
    """Never answers: in the service the guard bounds its lookups."""

    async def find(self, query: Query) -> User | None:
        LoopClock().forward(6)
        await asyncio.Event().wait()
        return None


async def test_a_source_that_never_answers_is_unavailable() -> None:
    async with asyncio.timeout(20):
        await SUITE.test_a_failing_source_is_never_not_found(Silent(None))
        with pytest.raises(Unavailable, match="no answer within"):
            await SUITE.test_a_user_is_found_by_card(Silent)


def test_name_of_a_backend_may_be_given() -> None:
    assert make_backend(Empty, Path(), name="crm").name == "crm"

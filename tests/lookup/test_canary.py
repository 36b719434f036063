"""A backend says "not known here" and is believed only while its canary is found."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from support.fakes.clock_and_backends import LoopClock, Ticker
from support.fakes.directories import directory as make_directory
from tornado_idv.errors import LookupFailed, Unavailable, Untrusted
from tornado_idv.interfaces.backend import Backend, BackendOptions
from tornado_idv.lookup.canary import Canary
from tornado_idv.lookup.directory import Directory
from tornado_idv.lookup.guard import BackendCall, Guard
from tornado_idv.model import Answer, BackendResult, ByCard, ByNickname, Query, Step, User

ALICE = User("Free", "4000", "alice")
BIRD = User("Free", "9001", "idv-canary")
TIT = User("Free", "9002", "new-canary")
ABSENT, ABSENT_CARD = ByNickname("nobody"), ByCard("4999")
BY_NICKNAME = {"nickname": "@idv-canary"}
BOTH = {**BY_NICKNAME, "card_number": "9001"}
LOST = 'canary @idv-canary is not found: its "not found" is not trusted'


class Users(Backend[BackendOptions]):
    """Knows ``users``, by nickname and by card; ``asked`` are the queries up to now.

    What is ``held`` waits. ``hook`` is called at the end of each lookup.
    """

    def __init__(self, *users: User, **options: Any) -> None:
        super().__init__(BackendOptions.model_validate({"name": "crm", "kind": "fake", **options}))
        self.by_nickname = {each.nickname: each for each in users}
        self.by_card = {each.card_number: each for each in users}
        self.asked: list[str] = []
        self.held: dict[str, asyncio.Event] = {}
        self.hook: Any = lambda query: None
        self.absent: BackendResult | None = None

    async def find(self, query: Query) -> User | BackendResult | None:
        self.asked.append(query.text)
        found = (
            self.by_nickname.get(query.nickname)
            if isinstance(query, ByNickname)
            else self.by_card.get(query.card_number)
        )
        if query.text in self.held:
            await self.held[query.text].wait()
        self.hook(query)
        return found or self.absent


def guard(backend: Users, ticker: Ticker | None = None) -> Guard:
    return Guard(backend, lambda _: True, timer=ticker or Ticker())


def ask(asked: Guard, query: Query, left: float = 60) -> Coroutine[Any, Any, Answer | None]:
    return asked.find(query, asyncio.get_running_loop().time() + left)


async def found(asked: Guard, query: Query) -> User | None:
    answer = await ask(asked, query)
    return None if answer is None else answer.user


async def is_believed(asked: Guard, query: Query = ABSENT) -> bool:
    """Return whether a lookup says that a user is not known; it is never found."""
    try:
        user = await found(asked, query)
    except Unavailable:
        return False
    assert user is None
    return True


async def ended(canary: Canary) -> None:
    if canary.task is not None:
        await asyncio.wait([canary.task])


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


# The rule


@pytest.mark.parametrize(
    ("age", "asked"),
    [(0.0, ["@nobody"]), (5.0, ["@nobody"]), (5.001, ["@nobody", "@idv-canary", "@nobody"])],
)
async def test_canary_is_believed_for_max_age_to_the_end_of_a_lookup(
    age: float, asked: list[str]
) -> None:
    """The first lookup is made again: the source may have come back just before the canary."""
    ticker = Ticker()
    users = Users(BIRD, canary=BY_NICKNAME)
    asking = guard(users, ticker)
    assert await is_believed(asking)
    assert users.asked == ["@nobody", "@idv-canary", "@nobody"]
    ticker.now += age
    users.asked.clear()
    assert await is_believed(asking)
    assert users.asked == asked


@pytest.mark.parametrize(("max_age", "seconds"), [("5s", 3), ("0s", 0)])
async def test_age_counts_from_the_begin_of_the_canary_to_the_end_of_the_lookup(
    max_age: str, seconds: int
) -> None:
    ticker = Ticker()
    users = Users(BIRD, canary={**BY_NICKNAME, "max_age": max_age})

    def pass_time(query: Query) -> None:
        ticker.now += seconds

    asking = guard(users, ticker)
    users.hook = pass_time
    for _ in range(2):
        users.asked.clear()
        assert await is_believed(asking)
        # The canary began at 3, and the second lookup ended at 9: the canary was looked up again.
        assert users.asked == ["@nobody", "@idv-canary", "@nobody", "@idv-canary"]
        ticker.now += 100


@pytest.mark.parametrize("max_age", ["0s", "5s"])
async def test_source_that_comes_back_before_the_canary_is_asked_again(max_age: str) -> None:
    users = Users(canary={**BY_NICKNAME, "max_age": max_age})

    def come_back(query: Query) -> None:
        users.by_nickname = {"alice": ALICE, "idv-canary": BIRD}

    users.hook = come_back
    assert await found(guard(users), ByNickname("alice")) == ALICE


async def test_source_that_comes_back_during_a_lookup_is_asked_again() -> None:
    """The canary was found in time, but not before the lookup began: it was empty for long."""
    ticker = Ticker()
    users = Users(canary=BY_NICKNAME)
    gate = users.held["@alice"] = asyncio.Event()
    asking = guard(users, ticker)
    waiting = asyncio.create_task(found(asking, ByNickname("alice")))
    await settle()
    ticker.now += 1
    users.by_nickname = {"alice": ALICE, "idv-canary": BIRD}
    assert await is_believed(asking)
    gate.set()
    assert await waiting == ALICE
    assert users.asked.count("@idv-canary") == 1


async def test_canary_found_during_a_lookup_is_no_evidence_for_it() -> None:
    """Its lookup began before the user's, but the source may have been empty until its end."""
    ticker = Ticker()
    users = Users(BIRD, canary=BY_NICKNAME)
    bird, alice = asyncio.Event(), asyncio.Event()
    users.held |= {"@idv-canary": bird, "@alice": alice}
    asking = guard(users, ticker)
    confirming = asyncio.create_task(is_believed(asking))
    await settle()
    ticker.now += 1
    waiting = asyncio.create_task(found(asking, ByNickname("alice")))
    await settle()
    ticker.now += 1
    users.by_nickname["alice"] = ALICE
    bird.set()
    assert await confirming
    alice.set()
    assert await waiting == ALICE


async def test_lost_canary_makes_absent_users_unavailable_and_leaves_the_others_found() -> None:
    users = Users(ALICE, canary=BY_NICKNAME)
    asking = guard(users)
    canary = ByNickname("idv-canary")  # an ordinary user to clients
    for query in (ABSENT, canary):
        with pytest.raises(Untrusted, match=LOST):
            await ask(asking, query)
    assert await found(asking, ByNickname("alice")) == ALICE
    users.by_nickname["idv-canary"] = BIRD
    assert await found(asking, canary) == BIRD
    assert await is_believed(asking)


async def test_result_with_a_time_to_live_is_believed_no_more_than_another() -> None:
    users = Users(canary=BY_NICKNAME)
    users.absent = BackendResult(None, ttl=9.0)
    assert not await is_believed(guard(users))
    users.by_nickname["idv-canary"] = BIRD
    answer = await ask(guard(users), ABSENT)
    assert answer is not None
    assert (answer.user, answer.ttl) == (None, 9.0)


class CardsOnly(Users):
    serves = frozenset[type[Query]]({ByCard})


async def test_found_users_and_kinds_without_a_canary_cost_no_lookup_of_it() -> None:
    users = Users(ALICE, canary=BY_NICKNAME)
    asking = guard(users)
    assert await found(asking, ByNickname("alice")) == ALICE
    assert await is_believed(asking, ABSENT_CARD)
    assert users.asked == ["@alice", "4999"]
    cards = CardsOnly(BIRD, canary={**BOTH, "absent": "@idv-disabled"})
    assert await is_believed(guard(cards), ABSENT_CARD)
    assert cards.asked == ["4999", "9001", "4999"]


async def test_each_kind_of_query_has_its_own_canary() -> None:
    users = Users(ALICE, BIRD, canary=BOTH)
    asking = guard(users)
    users.by_card.clear()
    assert await is_believed(asking)
    with pytest.raises(Unavailable, match=r"canary @idv-canary \(by card number\) is not found"):
        await ask(asking, ABSENT_CARD)


@pytest.mark.parametrize("missing", [BIRD, TIT], ids=lambda user: user.nickname)
async def test_all_canaries_of_a_list_must_be_found(missing: User) -> None:
    canaries = [BOTH, {"nickname": "@new-canary", "card_number": "9002", "max_age": "1s"}]
    users = Users(BIRD, TIT, canary=canaries)
    asking = guard(users)
    canary = asking.canaries[ByNickname]
    assert await is_believed(asking)
    assert canary.is_fresh(1001.0)
    assert not canary.is_fresh(1001.1)  # the shorter time counts
    del users.by_nickname[missing.nickname], users.by_card[missing.card_number]
    canary._found.clear()  # noqa: SLF001 - the size of a table
    for query, how in ((ABSENT, ""), (ABSENT_CARD, r" \(by card number\)")):
        with pytest.raises(Unavailable, match=f"canary @{missing.nickname}{how} is not found"):
            await ask(asking, query)


async def test_canary_of_a_list_without_a_name_of_its_own_is_named_by_its_place() -> None:
    for name in (BY_NICKNAME, {}):
        users = Users(BIRD, canary=[BOTH, {**name, "card_number": "9002"}])
        with pytest.raises(Unavailable, match=r"canary 2 \(by card number\) is not found"):
            await ask(guard(users), ABSENT_CARD)


async def test_match_applies_to_clients_and_not_to_the_canary() -> None:
    users = Users(BIRD, canary=BY_NICKNAME, match="@n.*")
    asking = guard(users)
    assert await is_believed(asking, ByNickname("zoe"))
    assert users.asked == []
    assert await is_believed(asking)


async def test_another_user_than_the_canary_is_not_the_canary() -> None:
    users = Users(BIRD, canary=BY_NICKNAME)
    users.by_nickname["idv-canary"] = ALICE
    with pytest.raises(Unavailable, match="canary: returned a user other than requested") as failed:
        await ask(guard(users), ABSENT)
    assert not isinstance(failed.value, Untrusted)  # which is that it is not found


# Sharing, time and failures


@pytest.mark.parametrize(("max_age", "most"), [("0s", 3), ("5s", 1)])
async def test_lookups_that_wait_share_one_lookup_of_the_canary(max_age: str, most: int) -> None:
    users = Users(BIRD, canary={**BY_NICKNAME, "max_age": max_age}, max_concurrent=60)
    asking = guard(users)
    assert all(await asyncio.gather(*(is_believed(asking) for _ in range(50))))
    assert 1 <= users.asked.count("@idv-canary") <= most


@pytest.mark.parametrize(("max_age", "age", "calls"), [("5s", 5, 1), ("5s", 5.1, 2), ("0s", 0, 2)])
async def test_lookup_of_the_canary_that_is_running_is_joined_if_it_began_in_time(
    max_age: str, age: float, calls: int
) -> None:
    ticker = Ticker()
    users = Users(BIRD, canary={**BY_NICKNAME, "max_age": max_age})
    canary = guard(users, ticker).canaries[ByNickname]
    gate = users.held["@idv-canary"] = asyncio.Event()
    deadline = asyncio.get_running_loop().time() + 5
    waiting = []
    for _ in range(2):
        waiting.append(asyncio.create_task(canary.confirm(ticker.now, deadline)))
        await settle()
        ticker.now += age
    gate.set()
    await asyncio.gather(*waiting)
    assert users.asked == ["@idv-canary"] * calls


@pytest.mark.parametrize(
    ("left", "reason"),
    [(0.2, "no answer within the request's time"), (60, "no answer within 0.4 s")],
)
async def test_caller_waits_for_the_canary_until_its_own_deadline(left: float, reason: str) -> None:
    """And others for the timeout of the backend; neither is a user who is not known."""
    users = Users(BIRD, canary=BY_NICKNAME, timeout="400ms")
    users.held["@idv-canary"] = asyncio.Event()
    clock, caller = LoopClock(), asyncio.create_task(ask(guard(users), ABSENT, left))
    await settle()
    clock.forward(min(left, 0.4) + 0.01)
    with pytest.raises(Unavailable, match=f"canary @idv-canary: {reason}"):
        await caller


@pytest.mark.parametrize("failures", [5, 1])
async def test_failure_of_the_canary_counts_once_in_the_breaker(failures: int) -> None:
    calls: list[BackendCall] = []
    users = Users(BIRD, canary=BY_NICKNAME, timeout="50ms", breaker={"failures": failures})
    users.held["@idv-canary"] = asyncio.Event()
    asking = Guard(users, lambda _: True, calls.append, timer=Ticker())
    assert not any(await asyncio.gather(*(is_believed(asking) for _ in range(4))))
    assert asking.breaker.failures == 1
    assert [each.result for each in calls] == ["unavailable"] * 5
    users.held.clear()
    assert await is_believed(asking) == (failures == 5)
    assert asking.breaker.state == ("closed" if failures == 5 else "open")


async def test_canaries_are_looked_up_before_lookups_that_wait_for_a_permit() -> None:
    canaries = [BY_NICKNAME, {"absent": "@idv-disabled"}]
    users = Users(BIRD, canary=canaries, max_concurrent=1)
    users.held["@first"] = asyncio.Event()
    asking = guard(users)
    names = ("first", "second", "third")
    lookups = [asyncio.create_task(is_believed(asking, ByNickname(name))) for name in names]
    await settle()
    asking.canaries[ByNickname].check()
    await settle()
    users.held["@first"].set()
    assert all(await asyncio.gather(*lookups))
    # A permit that becomes free goes to the second lookup: the next canary is not queued yet.
    assert users.asked[:5] == ["@first", "@idv-canary", "@second", "@idv-disabled", "@third"]


async def test_caller_that_leaves_does_not_end_the_lookup_of_the_canary() -> None:
    users = Users(BIRD, canary=BY_NICKNAME)
    gate = users.held["@idv-canary"] = asyncio.Event()
    asking = guard(users)
    callers = [asyncio.create_task(is_believed(asking)) for _ in range(2)]
    await settle()
    callers[0].cancel()
    await settle()
    gate.set()
    assert await callers[1]
    assert users.asked.count("@idv-canary") == 1


# In the background, and for the operator


async def test_canary_is_looked_up_without_traffic_after_30_s() -> None:
    ticker = Ticker()
    users = Users(BIRD, canary=BOTH)
    asking = guard(users, ticker)
    canary = asking.canaries[ByNickname]

    async def check() -> tuple[bool, str | None]:
        canary.check()
        await ended(canary)
        return canary.found, canary.problem

    assert not canary.found
    for seconds, asked in ((0, 1), (29.9, 1), (0.1, 2)):
        ticker.now += seconds
        assert await check() == (True, None)
        assert users.asked == ["@idv-canary"] * asked
    ticker.now += 30

    def fail(query: Query) -> None:
        if query == ByNickname("idv-canary"):
            raise Unavailable("slow down", retry_after=7)

    users.hook = fail
    assert await check() == (True, None)
    with pytest.raises(LookupFailed) as caught:
        await ask(asking, ABSENT)
    assert caught.value.retry_after == 7
    ticker.now += 30
    users.by_nickname.clear()
    users.hook = lambda _: None
    assert await check() == (False, LOST)


async def test_lookup_of_the_canary_that_takes_over_30_s_is_not_repeated_at_once() -> None:
    ticker = Ticker()
    users = Users(BIRD, canary=BY_NICKNAME)
    canary = guard(users, ticker).canaries[ByNickname]
    gate = users.held["@idv-canary"] = asyncio.Event()
    canary.check()
    await settle()
    ticker.now += 31
    canary.check()
    gate.set()
    await ended(canary)
    assert users.asked == ["@idv-canary"]


async def test_lookup_of_the_canary_ends_with_the_backend() -> None:
    users = Users(BIRD, canary=BY_NICKNAME)
    users.held["@idv-canary"] = asyncio.Event()
    asking, clock = guard(users), LoopClock()
    caller = asyncio.create_task(ask(asking, ABSENT))
    await settle()
    task = asking.canaries[ByNickname].task
    assert task is not None
    task.cancel()
    clock.forward(61)
    with pytest.raises(Unavailable):
        await caller
    assert asking.in_flight == 0


@pytest.mark.parametrize("known", [[BIRD], []], ids=["found", "lost"])
@pytest.mark.parametrize("query", [ABSENT, ABSENT_CARD])
async def test_reload_keeps_what_is_known_of_the_canary(query: Query, known: list[User]) -> None:
    users = Users(*known, canary=BOTH)
    before, after = guard(users), guard(users)
    assert await is_believed(before, query) is bool(known)
    after.share_state_of(before)
    assert after.canaries[type(query)].problem == before.canaries[type(query)].problem
    users.asked.clear()
    after.canaries[type(query)].check()
    await settle()
    assert await is_believed(after, query) is bool(known)
    assert not known or users.asked == [query.text]
    users.by_nickname.clear()
    users.by_card.clear()
    await before.canaries[type(query)]._find_all()  # noqa: SLF001 - a lookup that was running
    assert not await is_believed(after, query)


async def test_loss_and_return_are_logged_once_without_card_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The backend is available again when all canaries are found, not when another user is."""
    caplog.set_level(logging.INFO, "tornado_idv.lookup")
    ticker = Ticker()
    users = Users(ALICE, canary=BOTH)
    asking = guard(users, ticker)
    for _ in range(3):
        assert not await is_believed(asking)
        assert not await is_believed(asking, ABSENT_CARD)
        assert await found(asking, ByNickname("alice")) == ALICE
        ticker.now += 20
    users.by_nickname["idv-canary"] = users.by_card["9001"] = BIRD
    assert await is_believed(asking)
    assert await is_believed(asking, ABSENT_CARD)
    lines = [(each.levelname, each.getMessage()) for each in caplog.records]
    fate = 'is not found: its "not found" is not trusted'
    assert [line for line in lines if line[0] != "WARNING"] == [
        ("ERROR", f"backend crm: canary @idv-canary {fate}"),
        ("ERROR", f"backend crm: canary @idv-canary (by card number) {fate}"),
        ("INFO", "backend crm: canary @idv-canary found again"),
        ("INFO", "backend crm: canary @idv-canary (by card number) found again"),
        ("INFO", "backend crm: available again"),
    ]
    assert "9001" not in caplog.text


async def test_explanation_and_steps_show_the_canary() -> None:
    users = Users(BIRD, canary=BY_NICKNAME)
    directory = make_directory(users)
    (call,) = (await directory.explain(ABSENT)).calls
    assert call.outcome == "not known here; canary @idv-canary found 0.0 s ago"
    (call,) = (await directory.explain(ByNickname("idv-canary"))).calls
    assert call.outcome == "found"
    asking = guard(users)
    steps = asking.record_steps()
    assert await is_believed(asking)
    assert steps == [Step("canary", "canary @idv-canary found 0.0 s ago")]
    assert Step("a", "b", "c", "d").masked(str.upper) == Step("a", "B", "C", "D")


@pytest.mark.parametrize("start", [None, Directory.explain, Directory.find_past_cache])
async def test_directory_is_joined_when_its_canaries_are_not_looked_up_any_more(start: Any) -> None:
    """And no user is looked up past the cache."""
    users = Users(BIRD, canary=BY_NICKNAME)
    gate = users.held["@idv-canary"] = asyncio.Event()
    directory = make_directory(users)
    (canary,) = directory.canaries
    caller = start and asyncio.create_task(start(directory, ByNickname("idv-canary")))
    if start is None:
        canary.check()
    await settle()
    joining = asyncio.create_task(directory.join())
    await settle()
    assert not joining.done()
    gate.set()
    await asyncio.wait_for(joining, 5)
    assert caller.done() if caller else canary.found


# Servers that differ


class TwoServers(Users):
    """Responds by the ``server`` of the moment; each knows its own users."""

    def __init__(self, servers: dict[str, tuple[User, ...]], **options: Any) -> None:
        super().__init__(**options)
        self.users_of, self.server = servers, "a"
        self.found_by: list[tuple[str, str]] = []

    async def find(self, query: Query) -> BackendResult:
        server = self.server
        users = {f"@{each.nickname}": each for each in self.users_of[server]}
        self.found_by.append((query.text, server))
        self.hook(query)
        return BackendResult(users.get(query.text), server=server)


def two_servers(**canary: str) -> TwoServers:
    """Two servers, of which the second has lost its users."""
    return TwoServers({"a": (ALICE, BIRD), "b": ()}, canary={**BY_NICKNAME, **canary})


async def test_canary_of_another_server_is_no_evidence() -> None:
    both = two_servers()
    asking = guard(both)
    assert await is_believed(asking)
    both.server = "b"
    with pytest.raises(Unavailable, match=LOST):
        await ask(asking, ByNickname("alice"))


@pytest.mark.parametrize("max_age", ["0s", "5s"])
async def test_user_is_looked_up_again_where_the_canary_was_found(max_age: str) -> None:
    """The backend went from a server that lost its users to the other one."""
    both = two_servers(max_age=max_age)
    asking = guard(both)
    both.server = "b"
    both.hook = lambda _: setattr(both, "server", "a")
    assert await found(asking, ByNickname("alice")) == ALICE
    assert [server for _, server in both.found_by] == ["b", "a", "a"]
    both.server = "b"
    assert await is_believed(asking)
    assert both.found_by[-1][1] == "a"


@pytest.mark.parametrize("max_age", ["0s", "5s"])
async def test_user_is_not_looked_up_for_ever_where_servers_take_turns(max_age: str) -> None:
    both = two_servers(max_age=max_age)
    asking = guard(both)
    both.hook = lambda query: setattr(both, "server", "b" if query.text == "@idv-canary" else "a")
    both.server = "b"
    with pytest.raises(Unavailable, match="has not found the canary; other servers have") as failed:
        await ask(asking, ByNickname("bob"))
    assert len(both.found_by) < 10
    assert failed.value.backend == "crm"


async def test_each_of_two_servers_that_find_the_canary_is_believed() -> None:
    both, ticker = TwoServers({"a": (BIRD,), "b": (BIRD,)}, canary=BY_NICKNAME), Ticker()
    asking = guard(both, ticker)
    for server in "abab":
        both.server = server
        assert await is_believed(asking)
        ticker.now += 1
    assert asking.canaries[ByNickname].summary == "canary @idv-canary found 3.0 s ago"
    assert [who for who in both.found_by if who[0] == "@idv-canary"] == [
        ("@idv-canary", "a"),
        ("@idv-canary", "b"),
    ]


async def test_canaries_of_a_list_must_be_found_by_one_server() -> None:
    canaries = [BY_NICKNAME, {"nickname": "@new-canary"}]
    both = TwoServers({"a": (BIRD, TIT), "b": (BIRD, TIT)}, canary=canaries)
    asking = guard(both, ticker := Ticker())
    assert await is_believed(asking)
    ticker.now += 1000
    both.hook = lambda query: setattr(both, "server", "b" if query.text == "@idv-canary" else "a")
    with pytest.raises(Unavailable, match="has not found the canary; other servers have"):
        await ask(asking, ABSENT)
    assert not asking.canaries[ByNickname].found  # an alert is for this


async def test_backend_knows_which_lookup_is_for_the_canary() -> None:
    users = Users(BIRD, canary=BY_NICKNAME)
    found = users.find

    async def find_canary(query: Query) -> User | BackendResult | None:
        users.asked.append("past caches")
        return await found(query)

    users.find_canary = find_canary  # type: ignore[method-assign]
    assert await is_believed(guard(users))
    assert users.asked == ["@nobody", "past caches", "@idv-canary", "@nobody"]


# Canaries of conditions

DISABLED = User("Free", "9003", "idv-disabled")
CONDITIONS: list[Any] = [
    {"absent": "@idv-disabled", "max_age": "0s"},
    [{**BOTH, "max_age": "0s"}, {**BOTH, "plan": "Free"}],
    {**BOTH, "absent": "9003", "max_age": "0s"},
]


@pytest.mark.parametrize(
    ("canary", "problem"),
    [
        (CONDITIONS[0], r"canary @idv-disabled \(absent\) is found"),
        (CONDITIONS[1], "canary @idv-canary.* does not have the plan Free"),
        (CONDITIONS[2], r"canary 1 \(absent\) is found"),
    ],
    ids=["absent", "plan", "absent card"],
)
@pytest.mark.parametrize(
    ("query", "user"),
    [(ByNickname("alice"), ALICE), (ByCard("4000"), ALICE), (ABSENT, None), (ABSENT_CARD, None)],
)
async def test_no_answer_is_believed_while_a_condition_does_not_hold(
    canary: Any, problem: str, query: Query, user: User | None
) -> None:
    """An attribute is hidden: disabled users are found, and plans have their default."""
    users = Users(ALICE, User("Pro", "9001", "idv-canary"), DISABLED, canary=canary)
    asking = guard(users)
    with pytest.raises(Untrusted, match=f"{problem}: its answers are not trusted"):
        await ask(asking, query)
    users.by_nickname = {"alice": ALICE, "idv-canary": BIRD}
    users.by_card = {"4000": ALICE, "9001": BIRD}
    assert await found(asking, query) == user


async def test_user_found_before_the_condition_is_known_to_hold_is_looked_up_again() -> None:
    users = Users(User("Pro", "4000", "alice"), BIRD, canary={**BOTH, "plan": "Free"})

    def hide_no_more(query: Query) -> None:
        users.by_nickname["alice"] = ALICE

    users.hook = hide_no_more
    asking = guard(users)
    assert await found(asking, ByNickname("alice")) == ALICE
    assert users.asked == ["@alice", "@idv-canary", "@alice"]
    await ask(asking, ByNickname("alice"))
    assert users.asked[3:] == ["@alice"]
    assert asking.canaries[ByNickname].summary == "canary @idv-canary confirmed 0.0 s ago"

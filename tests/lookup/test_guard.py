"""Whatever a backend does, its guard gives a right answer, or raises LookupFailed."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from support.fakes.caches import leave
from support.fakes.clock_and_backends import FakeBackend, LoopClock, Ticker
from tornado_idv.errors import Broken, LookupFailed, Unavailable
from tornado_idv.lookup import bulkhead
from tornado_idv.lookup.guard import BackendCall, CallResult, Guard
from tornado_idv.model import Answer, BackendResult, ByCard, ByNickname, Query, User

DOWN = Unavailable("down")
ALICE = User("Free", "4000", "alice")
BY_NICKNAME = ByNickname("alice")
BY_CARD = ByCard("4000")
OPEN = "circuit breaker open, "
TOO_LATE = "not called: the request's time is nearly over"
TOO_MANY = "max_concurrent reached; the queue is full"


def guard(backend: FakeBackend, **options: Any) -> Guard:
    """A guard that takes any record for one that can be answered."""
    return Guard(backend, options.pop("accepts", lambda user: True), **options)


def ask(
    asked: Guard, query: Query = BY_NICKNAME, left: float = 60
) -> Coroutine[Any, Any, Answer | None]:
    return asked.find(query, asyncio.get_running_loop().time() + left)


def begin(asked: Guard, left: float = 60) -> asyncio.Task[Answer | None]:
    """A caller of many: they come in the order in which they are begun."""
    return asyncio.create_task(ask(asked, left=left))


async def failure(asked: Guard, query: Query = BY_NICKNAME, left: float = 60) -> LookupFailed:
    """Why there is no answer. It comes after those begun before, on every Python."""
    caller = asyncio.create_task(ask(asked, query, left))
    with pytest.raises(LookupFailed) as caught:
        await asyncio.wait_for(caller, timeout=5)
    return caught.value


async def begun(backend: FakeBackend) -> None:
    await asyncio.wait_for(backend.source.begun.wait(), timeout=5)


NO_USER = "returned something other than a user"
NO_TEXT = "returned a user with a field that is missing or not text"
ANOTHER = "returned a user other than requested"
OUTCOMES: dict[str, tuple[object, str, CallResult]] = {
    "found": (ALICE, "found", "found"),
    "not known": (None, "not known here", "not_found"),
    "not known for a time": (BackendResult(None, ttl=5), "not known here", "not_found"),
    "unavailable": (DOWN, "down", "unavailable"),
    "lost": (Unavailable("lost", counts_against_breaker=False), "lost", "unavailable"),
    "changed": (Broken("changed", counts_against_breaker=False), "changed", "broken"),
    "broken": (Broken("two users"), "two users", "broken"),
    "its own time-out": (TimeoutError(), "no answer within 0.8 s", "unavailable"),
    "unexpected": (KeyError("alice"), "failed with KeyError", "broken"),
    "exits": (SystemExit(3), "failed with SystemExit", "broken"),
    "cancelled": (asyncio.CancelledError("alice"), "raised CancelledError by itself", "broken"),
    "text": ("alice", NO_USER, "broken"),
    "false": (False, NO_USER, "broken"),
    "answer": (Answer(ALICE), NO_USER, "broken"),
    "card a number": (User("Free", 4000, "alice"), NO_TEXT, "broken"),  # type: ignore[arg-type]
    "plan None": (User(None, "4000", "alice"), NO_TEXT, "broken"),  # type: ignore[arg-type]
    "nickname bytes": (User("Free", "4000", b"alice"), NO_TEXT, "broken"),  # type: ignore[arg-type]
    "another user": (User("Free", "4000", "bob"), ANOTHER, "broken"),
    "another case": (
        User("Free", "4000", "Alice"),
        f"{ANOTHER}; nickname_case may be the reason",
        "broken",
    ),
    "with the sign": (User("Free", "4000", "@alice"), ANOTHER, "broken"),
}


# What it says


@pytest.mark.parametrize(
    ("match", "query", "asked"),
    [
        ("@a.*", BY_NICKNAME, True),
        ("alice", BY_NICKNAME, False),
        ("@ali", BY_NICKNAME, False),
        ("@a.*", BY_CARD, False),
        ("40..", BY_CARD, True),
        (r"@.*|4\d*", BY_CARD, True),
    ],
    ids=str,
)
async def test_query_that_does_not_match_fully_is_not_known_and_not_looked_up(
    match: str, query: Query, *, asked: bool
) -> None:
    calls: list[BackendCall] = []
    backend = FakeBackend(ALICE, match=match)
    answer = await ask(guard(backend, on_result=calls.append), query)
    found = answer is not None and answer.found
    assert (found, backend.source.asked, len(calls)) == (asked, asked, asked)


@pytest.mark.parametrize(
    ("error", "on_unavailable", "left", "continues"),
    [
        (DOWN, "continue", 60, True),
        (DOWN, "fail", 60, False),
        (TimeoutError(), "continue", 60, True),
        (Broken("two users"), "continue", 60, False),
        (ALICE, "continue", 0, True),
    ],
    ids=["unavailable", "not configured", "time-out", "broken", "a limit of our own"],
)
async def test_only_an_unavailable_backend_may_be_passed_over_and_only_if_so_configured(
    error: object, on_unavailable: str, left: float, *, continues: bool
) -> None:
    backend = FakeBackend(error, on_unavailable=on_unavailable)
    assert (await failure(guard(backend), left=left)).continues is continues


# What it makes of a backend that fails


async def test_an_unexpected_error_is_broken_and_its_text_is_in_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    error = await failure(guard(FakeBackend(KeyError("alice"))))
    assert isinstance(error, Broken)
    assert str(error) == "crm: failed with KeyError"
    assert error.__suppress_context__
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    first, *_, last = record.getMessage().splitlines()
    assert (first, last) == ("backend crm: failed with KeyError", "KeyError")
    assert "in find" in caplog.text
    assert "alice" not in caplog.text


_URL_OF_2048 = f"https://x.example/{'a' * 2030}"
_BAD_URLS = ("javascript:alert(1)", "https://", "https://x.example/\n", "https://x.example/a b")
INVALID = {
    "plan": ("", " \t", "x" * 257, "Free\n", "a\x9fb", "a\u2028b", "Fr\ud800ee"),
    "profile_url": ("", *_BAD_URLS, "https://x.example/\x80", f"{_URL_OF_2048}a", 1),
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in INVALID for value in INVALID[field]], ids=ascii
)
async def test_a_record_that_an_import_would_reject_is_broken(field: str, value: Any) -> None:
    error = await failure(guard(FakeBackend(replace(ALICE, **{field: value}))))
    assert isinstance(error, Broken)
    assert error.reason.startswith(f"returned a user whose {field} is not ")


@pytest.mark.parametrize("query", [BY_NICKNAME, BY_CARD], ids=["nickname", "card"])
@pytest.mark.parametrize(
    ("plan", "url"),
    [("Fr\u00e9e", "http://x"), ("x" * 256, "https://x.example/\u00fc"), ("a ", _URL_OF_2048)],
)
async def test_every_other_record_is_an_answer_in_the_backend_s_name(
    query: Query, plan: str, url: str
) -> None:
    user = User(plan, "4000", "alice", url)
    assert await ask(guard(FakeBackend(user)), query) == Answer(user, "crm")


async def test_user_that_was_not_or_cannot_be_requested_is_broken() -> None:
    for number, name in (("4001", "alice"), ("04000", "alice"), ("4001", "4000")):
        asked = guard(FakeBackend(User("Free", number, name)))
        assert isinstance(await failure(asked, BY_CARD), Broken)
    error = await failure(guard(FakeBackend(ALICE), accepts=lambda user: user is not ALICE))
    assert isinstance(error, Broken)
    assert error.reason == "returned a user whose nickname or card number is not in a valid format"


# How long it waits


@pytest.mark.parametrize(
    ("own", "left", "reason", "failures"),
    [(1, 2, "no answer within 1 s", 1), (99, 1, "no answer within the request's time", 0)],
    ids=["its own time", "the request's time"],
)
async def test_a_backend_that_never_answers_is_stopped_at_the_first_end_of_time(
    own: float, left: float, reason: str, failures: int
) -> None:
    clock, backend = LoopClock(), FakeBackend(ALICE, timeout=own)
    backend.source.hold()
    asked = guard(backend)
    caller = begin(asked, left)
    await begun(backend)
    clock.forward(1.1)
    with pytest.raises(Unavailable) as caught:
        await asyncio.wait_for(caller, timeout=30)
    assert str(caught.value) == f"crm: {reason}"
    assert backend.source.under_way == 0
    assert asked.breaker.failures == failures


@pytest.mark.parametrize(("left", "asked"), [(-1, 0), (0.049, 0), (1, 1)], ids=str)
async def test_with_too_little_time_left_a_backend_is_not_asked(left: float, asked: int) -> None:
    backend = FakeBackend(DOWN)
    error = await failure(guard(backend), left=left)
    assert backend.source.asked == asked
    assert error.reason == ("down" if asked else TOO_LATE)


# How many it lets in


async def test_so_many_are_asked_at_once_and_many_more_wait() -> None:
    backend = FakeBackend(ALICE, max_concurrent=3)
    backend.source.hold()
    asked = guard(backend)
    callers = [begin(asked) for _ in range(500)]
    await begun(backend)
    assert backend.source.asked == 3
    backend.source.release()
    assert await asyncio.gather(*callers) == [Answer(ALICE, "crm")] * 500
    assert (backend.source.asked, backend.source.most_under_way) == (500, 3)


async def test_queued_lookup_leaves_half_of_the_time_to_the_next_backend() -> None:
    clock, backend = LoopClock(), FakeBackend(ALICE, max_concurrent=1, timeout=60)
    backend.source.hold()
    asked = guard(backend)
    first, waiting = begin(asked), begin(asked, left=2)
    await begun(backend)
    clock.stop()
    await clock.advance(1.02)
    await asyncio.sleep(0)
    assert waiting.done()
    with pytest.raises(Unavailable) as caught:
        await waiting
    assert caught.value.reason == "max_concurrent reached; the lookup timed out in the queue"
    another = begin(asked)
    backend.source.release()
    assert await asyncio.gather(first, another) == [Answer(ALICE, "crm")] * 2
    assert backend.source.asked == 2


# When it leaves the backend alone


FAILURES = {name: OUTCOMES[name][0] for name in ("unavailable", "its own time-out")}
NO_FAILURES = {
    name: answer
    for name, (answer, _, result) in OUTCOMES.items()
    if result != "unavailable" and name != "changed"
}


@pytest.mark.parametrize("left", [60, 0.5], ids=["time enough", "less than its own"])
@pytest.mark.parametrize("answer", FAILURES.values(), ids=FAILURES)
async def test_a_backend_that_fails_five_times_in_a_row_is_left_alone(
    answer: object, left: float
) -> None:
    calls: list[BackendCall] = []
    backend = FakeBackend(answer, max_concurrent=1)
    asked = guard(backend, on_result=calls.append)
    for _ in range(5):
        assert not (await failure(asked, left=left)).reason.startswith(OPEN)
    error = await failure(asked)
    assert isinstance(error, Unavailable)
    assert error.reason.startswith(OPEN)
    assert [each.result for each in calls] == ["unavailable"] * 5 + ["rejected"]
    assert backend.source.asked == 5


@pytest.mark.parametrize("answer", NO_FAILURES.values(), ids=NO_FAILURES)
async def test_what_is_no_failure_of_the_infrastructure_does_not_count(answer: object) -> None:
    backend = FakeBackend(answer, max_concurrent=1)
    asked = guard(backend)
    for _ in range(10):
        await asyncio.gather(ask(asked), return_exceptions=True)
    assert backend.source.asked == 10


async def test_own_limits_and_disconnects_are_no_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulkhead, "MAX_WAITING", 10)
    clock, calls = LoopClock(), list[BackendCall]()
    backend = FakeBackend(ALICE, timeout=60, max_concurrent=10)
    backend.source.hold()
    asked = guard(backend, on_result=calls.append)
    for _ in range(10):
        assert (await failure(asked, left=0)).reason == TOO_LATE
    out_of_time = [begin(asked, left=1) for _ in range(10)]
    waiting = [begin(asked, left=1) for _ in range(10)]
    for _ in range(10):
        assert (await failure(asked)).reason == TOO_MANY
    clock.forward(1.1)
    ends = await asyncio.gather(*out_of_time, *waiting, return_exceptions=True)
    assert all(isinstance(end, Unavailable) for end in ends)
    backend.source.hold()
    leaving = [begin(asked) for _ in range(10)]
    await begun(backend)
    for caller in leaving:
        await leave(caller)
    assert backend.source.under_way == 0
    assert {each.outcome for each in calls[-10:]} == {"client disconnected"}
    backend.source.release()
    assert await ask(asked) == Answer(ALICE, "crm")
    assert backend.source.asked == 21
    results = Counter(each.result for each in calls)
    assert results == {"rejected": 30, "unavailable": 10, "cancelled": 10, "found": 1}


async def test_own_limits_disconnects_and_skipped_calls_are_no_successes() -> None:
    backend = FakeBackend(DOWN)
    asked = guard(backend)
    for _ in range(4):
        await failure(asked)
    backend.source.answer = Broken("cannot be sent", counts_against_breaker=False)
    assert (await failure(asked)).reason == "cannot be sent"
    await failure(asked, left=0)
    backend.source.hold()
    leaving = begin(asked)
    await begun(backend)
    await leave(leaving)
    backend.source.hold().set()
    backend.source.answer = DOWN
    assert (await failure(asked)).reason == "down"
    assert (await failure(asked)).reason.startswith(OPEN)


async def test_backend_that_reports_its_source_available_is_called_again_at_once() -> None:
    backend = FakeBackend(DOWN, breaker={"failures": 1})
    asked = guard(backend)
    await failure(asked)
    after = guard(backend)
    after.share_state_of(asked)
    assert (await failure(after)).reason.startswith(OPEN)
    backend.source.answer = ALICE
    backend.notify_available()
    assert await ask(after) == await ask(asked) == Answer(ALICE, "crm")


async def test_backend_that_has_verified_its_source_closes_the_circuit() -> None:
    calls: list[BackendCall] = []
    backend = FakeBackend(DOWN, breaker={"failures": 2})
    asked = guard(backend, on_result=calls.append)
    for _ in range(2):
        await failure(asked)
    assert asked.breaker.state == "open"
    backend.notify_available()
    assert (asked.breaker.state, len(calls)) == ("half_open", 2)
    backend.notify_available(verified=True)
    assert asked.breaker.state == "closed"
    assert calls[2:] == [BackendCall("crm", "verified", 0.0, "verified")]
    await failure(asked)
    assert asked.breaker.state == "closed"
    await failure(asked)
    assert asked.breaker.state == "open"


async def test_failure_has_the_wait_of_the_circuit_breaker() -> None:
    ticker = Ticker()
    backend = FakeBackend(DOWN, breaker={"failures": 2, "open_for": "20s"})
    asked = guard(backend, timer=ticker)
    assert (await failure(asked)).retry_after == 1
    opened = (await failure(asked)).retry_after
    assert opened == asked.breaker.next_probe > 10
    ticker.now += 5
    assert (await failure(asked)).retry_after == pytest.approx(opened - 5)
    ticker.now += opened
    backend.source.answer = Unavailable("asked to wait", retry_after=300.0)
    assert (await failure(asked)).retry_after == 300


async def test_guards_of_one_backend_share_its_concurrency_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As during a reload, while lookups of the guard before are running."""
    monkeypatch.setattr(bulkhead, "MAX_WAITING", 1)
    backend = FakeBackend(ALICE, max_concurrent=1)
    asked, after = guard(backend), guard(backend)
    after.share_state_of(asked)
    backend.source.hold()
    running, queued = begin(asked), begin(after)
    assert str(await failure(after)) == f"crm: {TOO_MANY}"
    assert after.in_flight == 1
    backend.source.release()
    assert await asyncio.gather(running, queued) == [Answer(ALICE, "crm")] * 2


@pytest.mark.parametrize("answer", NO_FAILURES.values(), ids=NO_FAILURES)
async def test_a_probe_that_gets_any_answer_closes_it(answer: object) -> None:
    ticker, backend = Ticker(), FakeBackend(DOWN, breaker={"failures": 1})
    asked = guard(backend, timer=ticker)
    await failure(asked)
    ticker.now += 6.1
    backend.source.answer = answer
    await asyncio.gather(ask(asked), return_exceptions=True)
    backend.source.hold()
    callers = [begin(asked) for _ in range(3)]
    await begun(backend)
    assert backend.source.under_way == 3
    backend.source.release()
    await asyncio.gather(*callers, return_exceptions=True)


@pytest.mark.parametrize("leaves", [True, False], ids=["its caller leaves", "its time is over"])
async def test_a_probe_that_decides_nothing_makes_room_for_the_next(*, leaves: bool) -> None:
    clock, ticker = LoopClock(), Ticker()
    backend = FakeBackend(DOWN, breaker={"failures": 1}, timeout=60)
    asked = guard(backend, timer=ticker)
    await failure(asked)
    ticker.now += 6.1
    backend.source.hold()
    probe = begin(asked, left=1)
    await begun(backend)
    if leaves:
        await leave(probe)
    else:
        clock.forward(1.1)
        with pytest.raises(Unavailable, match="no answer within the request's time"):
            await probe
    backend.source.hold().set()
    backend.source.answer = ALICE
    assert await ask(asked) == Answer(ALICE, "crm")


# What it tells


@pytest.mark.parametrize(("answer", "said", "result"), OUTCOMES.values(), ids=OUTCOMES)
async def test_every_outcome_is_reported_with_its_duration(
    answer: object, said: str, result: CallResult
) -> None:
    """Also where the caller did not leave, but the work of the backend was cancelled."""
    calls: list[BackendCall] = []
    ticker, backend = Ticker(), FakeBackend(answer)
    backend.source.hold()
    caller = begin(guard(backend, on_result=calls.append, timer=ticker))
    await begun(backend)
    ticker.now += 0.25
    backend.source.release()
    (end,) = await asyncio.gather(caller, return_exceptions=True)
    assert calls == [BackendCall("crm", said, 0.25, result)]
    assert isinstance(end, {"broken": Broken, "unavailable": Unavailable}.get(result, object))


async def test_failures_are_logged_with_texts_that_can_be_folded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend, ticker = FakeBackend(), Ticker()
    asked = guard(backend, timer=ticker)
    for number in range(20):
        backend.source.answer = Unavailable("down" if number % 2 else "locked")
        await failure(asked)
        await failure(asked, left=0)
        ticker.now += 0.1
    figures = re.compile(r"next probe in [456](\.[0-9])? s$")
    logged = dict.fromkeys(figures.sub("...", message) for message in caplog.messages)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert list(logged) == [
        "backend crm: locked",
        f"backend crm: {TOO_LATE}",
        "backend crm: down",
        "backend crm: circuit breaker open after 5 failures; ...",
        "backend crm: circuit breaker open",
    ]
    assert len(caplog.messages) == 41


@pytest.mark.parametrize("answer", [ALICE, None], ids=["found", "not known"])
async def test_recovery_logged_once(caplog: pytest.LogCaptureFixture, answer: User | None) -> None:
    """And of a backend that fails now and then, every 10 s: these lines are not folded."""
    caplog.set_level(logging.DEBUG)
    backend, ticker = FakeBackend(), Ticker()
    asked = guard(backend, timer=ticker)
    for each in (Broken("two users"), answer):
        backend.source.answer = each
        await asyncio.gather(ask(asked), return_exceptions=True)
    assert "backend crm: available again" not in caplog.messages  # it was never unavailable
    recovered = []
    for seconds in (0, 1, 8.9, 0.1, 1):
        ticker.now += seconds
        caplog.clear()
        for each in (DOWN, Broken("two users"), answer, answer):
            backend.source.answer = each
            await asyncio.gather(ask(asked), return_exceptions=True)
            before, asked = asked, guard(backend, timer=ticker)  # as by a reload
            asked.share_state_of(before)
        lines = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
        recovered.append(lines == ["backend crm: available again"])
    assert recovered == [True, False, False, True, False]


@pytest.mark.parametrize("answer", [row[0] for row in OUTCOMES.values()], ids=OUTCOMES)
@pytest.mark.parametrize("query", [BY_NICKNAME, BY_CARD], ids=["nickname", "card"])
async def test_no_log_holds_personal_data(
    caplog: pytest.LogCaptureFixture, query: Query, answer: object
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = guard(FakeBackend(answer))
    for _ in range(6):
        await asyncio.gather(ask(asked, query), return_exceptions=True)
    for personal in ("alice", "bob", "4000"):
        assert personal not in caplog.text

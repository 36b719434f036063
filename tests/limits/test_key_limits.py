"""Limits of keys, compared with exact arithmetic: never more than allowed, and never less.

Those of `config.yaml` are those of the service, over real connections.
"""

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fakes.clock_and_backends import Ticker
from support.http.http_server import until
from support.processes.reloads import Gated, config, reloadable
from support.processes.service import CARDS_ONLY_KEY, CONFIG, USERS, Client, serving
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.limits import KeyLimiter, KeyLimits
from tornado_idv.units import Rate

CARD = "/api/v1/identify/card"
HUNDRED = Rate(100, 100)
STRICT, GENEROUS = Rate(1, 86400), Rate(100, 1)
# In binary fractions, so that floats are exact.
RATES = st.builds(Rate, st.integers(0, 20).map(lambda n: 2**n), st.sampled_from([1, 7, 600, 86400]))
TIMES = (st.integers(0, 1024) | st.integers(0, 2**30)).map(lambda n: n / 1024)
PAUSES = st.lists(TIMES, min_size=1, max_size=60)


@pytest.fixture
def clock() -> Ticker:
    return Ticker()


def key(name: str = "shop", **limits: Rate | bool) -> ApiKey:
    return ApiKey(name, name.encode(), **limits)  # type: ignore[arg-type]


def limits_of(limiter: KeyLimiter, name: str = "shop", **limits: Rate | bool) -> KeyLimits:
    found = limiter.of(key(name, **limits))
    assert found is not None
    return found


def make_limiter(requests: Rate | None, misses: Rate | None = None, *, clock: Ticker) -> KeyLimiter:
    limiter = KeyLimiter(clock=clock)
    limiter.configure(requests, misses)
    return limiter


def allowed(limits: KeyLimits, attempts: int) -> int:
    """Return how many of some requests at once are allowed."""
    return sum(limits.acquire() is None for _ in range(attempts))


@pytest.mark.slow
@given(RATES, PAUSES)
def test_a_request_is_allowed_exactly_when_a_token_bucket_allows_it(
    rate: Rate, pauses: list[float]
) -> None:
    """The bucket holds the count, and gains a token for each interval.

    A refused request is allowed after the wait, and not before.
    """
    clock = Ticker()
    limits = limits_of(make_limiter(rate, clock=clock))
    interval = Fraction(rate.seconds) / rate.count
    tokens = Fraction(rate.count)
    for pause in pauses:
        clock.now += pause
        tokens = min(Fraction(rate.count), tokens + Fraction(pause) / interval)
        exceeded = limits.acquire()
        assert (exceeded is None) == (tokens >= 1)
        if exceeded is None:
            tokens -= 1
        else:
            assert exceeded.wait == (1 - tokens) * interval


_ROUNDING = Fraction(1, 10**6)


@given(RATES, PAUSES, st.data())
def test_as_many_misses_as_the_budget_are_allowed(
    rate: Rate, pauses: list[float], data: st.DataObject
) -> None:
    """Found users cost nothing; after the last miss every lookup is refused."""
    clock = Ticker()
    limits = limits_of(make_limiter(None, rate, clock=clock))
    interval = Fraction(rate.seconds) / rate.count
    tokens = Fraction(rate.count)
    for pause in pauses:
        clock.now += pause
        tokens = min(Fraction(rate.count), tokens + Fraction(pause) / interval)
        exceeded = limits.acquire()
        # Within a rounding error of the limit, either is right.
        if abs(tokens - 1) > _ROUNDING:
            assert (exceeded is None) == (tokens >= 1)
        if exceeded is None and data.draw(st.booleans()):
            limits.charge_miss()
            tokens -= 1


def test_lookups_at_once_see_that_the_others_spent_the_budget_of_misses(clock: Ticker) -> None:
    limits = limits_of(make_limiter(None, Rate(10, 10), clock=clock))
    assert allowed(limits, 30) == 30
    served = 0
    for _ in range(30):
        if limits.spent_misses() is None:
            limits.charge_miss()
            served += 1
    exceeded = limits.spent_misses()
    assert exceeded is not None
    assert (served, exceeded.limit.name, exceeded.wait) == (10, "misses", 1)
    clock.now += 1000  # a long rest allows no larger batch
    assert limits.acquire(11) is not None


def test_the_longer_wait_counts_if_both_limits_are_exceeded(clock: Ticker) -> None:
    limiter = make_limiter(Rate(1, 10), Rate(1, 60), clock=clock)
    limits, other = limits_of(limiter), limits_of(limiter, "other", requests=Rate(1, 100))
    for each, name, wait in ((limits, "misses", 60), (other, "requests", 100)):
        assert each.acquire() is None
        each.charge_miss()
        exceeded = each.acquire()
        assert exceeded is not None
        assert (exceeded.limit.name, exceeded.wait) == (name, wait)
    for pause, count in ((59, 0), (1, 1)):  # a request that is refused for misses does not count
        clock.now += pause
        assert allowed(limits, 1) == count


def test_log_only_refuses_no_miss_and_logs_once_a_minute(
    clock: Ticker, caplog: pytest.LogCaptureFixture
) -> None:
    """It logs what would have been refused: it ends when the budget would be available again."""
    limiter = make_limiter(Rate(200, 200), Rate(2, 3600, log_only=True), clock=clock)
    limits = limits_of(limiter)
    for _ in range(100):
        assert limits.acquire() is None
        limits.charge_miss()
        clock.now += 1
    assert [record.getMessage() for record in caplog.records] == [
        "key shop exceeds its limit of misses (2/hour): without log_only its lookups would get 429"
    ] * 2
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    clock.now += 1800
    caplog.clear()
    assert allowed(limits, 250) == 200
    assert caplog.records == []


def test_own_limits_replace_the_general_ones(clock: Ticker) -> None:
    limiter = make_limiter(HUNDRED, Rate(1, 3600, log_only=True), clock=clock)
    own = limits_of(limiter, "own", requests=Rate(5, 5), misses=Rate(2, 3600))
    assert allowed(own, 10) == 5
    clock.now += 1
    own.charge_miss()
    assert allowed(own, 1) == 1
    own.charge_miss()
    clock.now += 5
    assert allowed(own, 1) == 0
    assert own.spent_misses() is not None
    other = limits_of(limiter, "other")
    other.charge_miss()
    assert allowed(other, 150) == 100
    assert other.spent_misses() is None
    logged = limits_of(limiter, "logged", misses=Rate(1, 3600, log_only=True))
    logged.charge_miss()
    assert allowed(logged, 1) == 1


def test_a_changed_key_keeps_what_it_has_used(clock: Ticker) -> None:
    limiter = make_limiter(HUNDRED, clock=clock)
    assert allowed(limits_of(limiter), 60) == 60
    assert allowed(limits_of(limiter, requests=Rate(200, 200)), 200) == 140
    other_token = limiter.of(ApiKey("shop", b"another token", requests=Rate(200, 200)))
    assert other_token is not None
    assert allowed(other_token, 1) == 0


def test_key_that_has_used_up_a_stricter_limit_waits_for_one_interval_of_the_new_one(
    clock: Ticker,
) -> None:
    limiter = make_limiter(STRICT, STRICT, clock=clock)
    assert allowed(limits_of(limiter, requests=STRICT), 2) == 1
    spent = limits_of(limiter, "other")
    spent.charge_miss()
    assert allowed(spent, 2) == 0
    limiter.configure(GENEROUS, GENEROUS)
    for limits in (limits_of(limiter, requests=GENEROUS), limits_of(limiter, "other")):
        exceeded = limits.acquire()
        assert exceeded is not None
        assert exceeded.wait <= 0.01
    clock.now += 0.01
    assert allowed(limits_of(limiter, requests=GENEROUS), 2) == 1
    assert allowed(limits_of(limiter, "other"), 1) == 1


def test_each_process_bounds_the_wait_by_a_new_limit(clock: Ticker) -> None:
    """Also one that has not served the key, or goes on with the old limit for a while."""
    first, second = limiters = [make_limiter(STRICT, clock=clock) for _ in range(2)]
    second._names, second._tats = first._names, first._tats  # noqa: SLF001 - the table that a fork shares
    assert allowed(limits_of(first), 2) == 1
    first.configure(GENEROUS, None)
    limits_of(first)
    clock.now += 0.01
    assert [allowed(limits_of(each), 1) for each in limiters] == [1, 0]
    clock.now += 1
    assert allowed(limits_of(second), 1) == 1
    assert allowed(limits_of(first), 1) == 0
    second.configure(GENEROUS, None)
    limits_of(second)
    clock.now += 0.01
    assert [allowed(limits_of(each), 1) for each in limiters] == [1, 0]


def test_general_limits_can_be_changed_and_removed(clock: Ticker) -> None:
    """A new limit never takes away what a key has not used."""
    limiter = make_limiter(STRICT, Rate(1, 3600, log_only=True), clock=clock)
    limits_of(limiter).charge_miss()
    for requests, log_only, count in ((HUNDRED, True, 100), (None, False, 0), (None, True, 150)):
        limiter.configure(requests, Rate(1, 3600, log_only=log_only))
        assert allowed(limits_of(limiter), 150) == count
    limiter.configure(None, None)
    assert limiter.of(key()) is None
    assert limits_of(limiter, misses=STRICT).requests is limits_of(limiter, requests=STRICT).misses
    limiter.configure(HUNDRED, None)
    assert (former := limiter.of(one := key())) is limiter.of(one) is not None
    limiter.configure(STRICT, None)
    assert limiter.of(one) is not former  # a key that a reload does not change


def test_keys_beyond_the_capacity_are_limited_too(
    clock: Ticker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tornado_idv.limits._CAPACITY", 4)
    limiter = make_limiter(HUNDRED, clock=clock)
    names = [f"key-{i}" for i in range(10)]
    assert [allowed(limits_of(limiter, name), 60) for name in names] == [60] * 10
    tokens = [ApiKey(name, f"another {name}".encode()) for name in names]
    found = [limits for limits in map(limiter.of, tokens) if limits]
    assert [allowed(limits, 60) for limits in found] == [40] * 10
    (record,) = caplog.records
    assert record.getMessage().startswith("the shared memory for limits is full after 4 keys")
    limiter.configure(STRICT, None)
    for name in names:
        limiter.of(key(name))
        assert len(limiter._by_digest) <= 4  # noqa: SLF001 - places in a table of fixed size


@pytest.mark.slow
def test_55000_keys_have_places_in_the_table(clock: Ticker) -> None:
    """Each its own; they are found by a hash, so the table is not filled to the end."""
    limiter = make_limiter(HUNDRED, clock=clock)
    places = [limiter._find_place(f"key-{i}") for i in range(55_000)]  # noqa: SLF001 - places in a table of fixed size
    assert all(table is limiter._tats for table, _ in places)  # noqa: SLF001 - places in a table of fixed size
    at = [at for _, at in places]
    assert all(later - earlier >= 3 for earlier, later in pairwise(sorted(at)))


# CPython 3.12 warns if the process that runs the tests has threads.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_processes_share_one_limit(clock: Ticker) -> None:
    limiter = make_limiter(HUNDRED, clock=clock)
    assert allowed(limits_of(limiter), 20) == 20
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        counts = [allowed(limits_of(limiter, name), 30) for name in ("shop", "new")]
        os.write(writer, bytes(counts))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 2) == bytes([30, 30])
    assert allowed(limits_of(limiter), 150) == 50
    assert allowed(limits_of(limiter, "new"), 150) == 70
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("fields", [{}, {"X-IDV-Past-Cache": "1"}], ids=["", "past the cache"])
async def test_guesses_at_once_find_out_no_more_than_the_budget_of_misses(
    tmp_path: Path, fields: dict[str, str]
) -> None:
    """Also a user who exists is not found out beyond it."""
    async with reloadable(tmp_path, config(more="limits: {misses: 3/hour}\n")) as harness:
        (users,) = Gated.made
        users.gate.clear()
        post = Client(harness.service.port).post
        bodies = [b'{"card_number": "400%d"}' % number for number in range(8)]
        with ThreadPoolExecutor(8) as threads:
            asking = [threads.submit(post, CARD, each, fields) for each in bodies]
            await until(lambda: users.asked == len(asking))
            users.gate.set()
            replies = await asyncio.gather(*map(asyncio.wrap_future, asking))
    assert sorted(each.status for each in replies) == [404] * 3 + [429] * 5
    waits = [each.headers["retry-after"] for each in replies if each.status == 429]
    assert all(0 < int(wait) <= 1200 for wait in waits)


@pytest.mark.parametrize(
    ("own", "statuses"),
    [
        ("{requests: 100/hour}", [404, 404, 404]),
        ("{misses: 1/hour}", [404, 429, 429]),
        ("{misses: {rate: 1/hour, log_only: true}}", [404, 404, 429]),
    ],
)
def test_limits_of_a_key_are_used_instead_of_the_general_ones(
    tmp_path: Path, own: str, statuses: list[int]
) -> None:
    text = CONFIG.replace("{id: cards, ", f"{{id: cards, limits: {own}, ")
    fields = {"Authorization": f"Bearer {CARDS_ONLY_KEY}"}
    limits = "limits: {requests: 2/hour, misses: {rate: 1/hour, log_only: true}}\n"
    with serving(f"{limits}{text}{USERS}", tmp_path) as service:
        client = Client(service.port)
        replies = [client.post(CARD, b'{"card_number": "4000"}', fields) for _ in range(3)]
        assert [each.status for each in replies] == statuses
        assert [client.by_input("@alice").status for _ in range(3)] == [200, 200, 429]

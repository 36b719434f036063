"""Limits that machines share: the documented bound holds, and no request is refused too early."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.fakes.clock_and_backends import Ticker
from support.fakes.shared_limits import KEY, FakeSharedLimits, Machine
from tornado_idv.errors import Unavailable
from tornado_idv.interfaces.shared import LimitUse
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.limits.key_limits import KeyLimiter
from tornado_idv.limits.limit_exchange import INTERVAL
from tornado_idv.units import Rate

pytestmark = pytest.mark.slow

HUNDRED = Rate(100, 100)
RATES = st.builds(Rate, st.sampled_from([1, 2, 5, 20, 100]), st.sampled_from([1, 4]))
BURSTS = st.lists(
    st.tuples(
        # No multiple of an interval of the rates: there, rounding would decide.
        st.sampled_from([0.0, 0.001, 0.03, 0.1, 0.5, 1.0, 3.0]).map(lambda pause: pause * 2**0.5),
        st.integers(0, 2),
        st.sampled_from([1, 3, 200]),
    ),
    min_size=1,
    max_size=25,
)
"""Seconds without a request, the machine that then gets some at once, and how many."""
_NOT_EXCHANGED = (
    "shared limits: not exchanged: the server cannot be reached; the limits of keys apply on each "
    "machine separately, trying again every 1 s"
)


@pytest.fixture
def clock() -> Ticker:
    return Ticker()


@pytest.fixture
def shared(clock: Ticker) -> FakeSharedLimits:
    return FakeSharedLimits(clock)


def make_machines(clock: Ticker, rate: Rate, count: int) -> list[Machine]:
    shared = FakeSharedLimits(lambda: clock() + 1e9)
    return [Machine.make(shared, clock, rate, offset=1000.0 * i) for i in range(count)]


async def exchange(*machines: Machine) -> None:
    for machine in machines:
        await machine.exchange.exchange()


async def allowed_times(
    machines: list[Machine], clock: Ticker, bursts: list[tuple[float, int, int]]
) -> list[float]:
    """Return when requests are allowed; each machine exchanges once in each interval."""
    times: list[float] = []
    start, exchanges, step = clock.now, 0, INTERVAL / len(machines)
    for pause, machine, requests in bursts:
        end = clock.now + pause
        while start + (exchanges + 1) * step <= end:
            exchanges += 1
            clock.now = start + exchanges * step
            await exchange(machines[exchanges % len(machines)])
        clock.now = end
        times += [end] * machines[machine % len(machines)].allowed(requests)
    return times


@given(RATES, st.integers(1, 3), BURSTS)
@example(  # each machine allows its whole count at once: that is charged in full
    Rate(1, 4),
    3,
    [(0.0, 0, 1), (0.042, 1, 1), (0.042, 2, 1), (4.24, 0, 1), (4.24, 1, 1), (0, 2, 1)],
)
def test_no_period_has_more_requests_than_the_documented_bound(
    rate: Rate, count: int, bursts: list[tuple[float, int, int]]
) -> None:
    clock = Ticker()
    machines = make_machines(clock, rate, count)
    times = asyncio.run(allowed_times(machines, clock, bursts))
    per_second = rate.count / rate.seconds
    overshoot = (count - 1) * (rate.count + 2 * INTERVAL * per_second)
    surplus = [i - at * per_second for i, at in enumerate(times, 1)]
    for most, least in zip(surplus, accumulate(surplus, min), strict=True):
        assert most - least + 1 <= rate.count + overshoot + 1e-6  # in the worst period up to here


@given(RATES, BURSTS)
def test_one_machine_alone_allows_what_it_does_without_exchange(
    rate: Rate, bursts: list[tuple[float, int, int]]
) -> None:
    clocks = [Ticker(), Ticker()]
    (machine,) = make_machines(clocks[0], rate, 1)
    alone = KeyLimiter(rate, clock=clocks[1], capacity=8).of(KEY)
    assert alone is not None
    expected: list[float] = []
    for pause, _, requests in bursts:
        clocks[1].now += pause
        expected += [clocks[1].now] * sum(alone.acquire() is None for _ in range(requests))
    times = asyncio.run(allowed_times([machine], clocks[0], bursts))
    assert times == pytest.approx(expected)


async def test_two_machines_allow_one_limit_together(
    clock: Ticker, shared: FakeSharedLimits
) -> None:
    """Over a long time it is the rate exactly, whatever was allowed beyond it in between."""
    machines = [Machine.make(shared, clock, Rate(10, 1), offset=i * 77.0) for i in range(2)]
    count = 0
    for _ in range(1000):  # 100 s
        count += sum(machine.allowed(3) for machine in machines)
        clock.now += INTERVAL
        await exchange(*machines)
    assert 990 <= count <= 1010 + 12


async def test_burst_after_a_quiet_time_is_charged_in_full(
    clock: Ticker, shared: FakeSharedLimits
) -> None:
    """It was used since the last exchange, also if that had nothing to exchange."""
    first, second = (Machine.make(shared, clock, HUNDRED) for _ in range(2))
    await exchange(first, second)
    clock.now += 3600
    await exchange(first, second)
    clock.now += INTERVAL
    assert (first.allowed(60), second.allowed()) == (60, 1)
    await exchange(first, second)
    assert second.allowed(100) == 39


async def test_exchange_that_takes_long_delays_no_request(
    clock: Ticker, shared: FakeSharedLimits
) -> None:
    machine = Machine.make(shared, clock, HUNDRED)
    at_once = shared.exchange

    async def exchange_slowly(since: float, uses: Sequence[LimitUse]) -> Sequence[float]:
        ahead = await at_once(since, uses)
        clock.now += 0.5
        return ahead

    shared.exchange = exchange_slowly  # type: ignore[method-assign]
    assert machine.allowed(200) == 100
    await exchange(machine)
    clock.now += 0.5
    assert machine.allowed() == 1


async def test_misses_are_shared_too(clock: Ticker, shared: FakeSharedLimits) -> None:
    first, second = (Machine.make(shared, clock, None, Rate(10, 3600)) for _ in range(2))
    assert first.missed(6) == 6
    assert second.missed(1) == 1
    await exchange(first, second)
    assert second.missed(10) == 3


async def test_what_was_used_without_exchange_is_not_charged_later(
    clock: Ticker, shared: FakeSharedLimits, caplog: pytest.LogCaptureFixture
) -> None:
    """While it fails each machine allows its own limit; that is the documented fall-back."""
    machines = [Machine.make(shared, clock, HUNDRED) for _ in range(2)]
    await exchange(*machines)
    shared.error = Unavailable("the server cannot be reached")
    since: set[float] = set()
    for _ in range(5):
        assert [each.allowed(20) for each in machines] == [20, 20]
        await exchange(*machines)
        since |= {each.exchange.since for each in machines}
    assert len(since) <= len(machines), "not when it failed last"
    assert [each.exchange.error for each in machines] == ["the server cannot be reached"] * 2
    assert caplog.messages == [_NOT_EXCHANGED] * 2
    shared.error = None
    await exchange(*machines)  # also though nothing was used
    assert [each.exchange.error for each in machines] == [None, None]
    clock.now += 50
    assert machines[0].allowed(100) == 50
    await exchange(*machines)
    assert machines[1].allowed(100) == 50
    assert shared.tats.popitem()[1] <= clock.now + 100


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError(), "no response in time"),
        (KeyError("requests 1/1 shop"), "KeyError"),
        (asyncio.CancelledError("shop"), "its own work was cancelled"),
    ],
    ids=["timeout", "error", "cancelled"],
)
async def test_an_unexpected_error_is_logged_without_its_message(
    clock: Ticker,
    shared: FakeSharedLimits,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    reason: str,
) -> None:
    shared.error = error
    machine = Machine.make(shared, clock, HUNDRED)
    machine.allowed()
    await exchange(machine)
    assert "shop" not in caplog.text
    assert machine.exchange.error == reason
    assert machine.exchange._counters.limit_exchanges == {"ok": 0, "failed": 1}


async def test_it_runs_until_closed_whatever_closing_raises(
    clock: Ticker, shared: FakeSharedLimits, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine.make(shared, clock, HUNDRED)
    shared.close_error = ValueError("shop")
    async with asyncio.timeout(5), machine.exchange.running():
        await shared.exchanged.wait()
    assert len(asyncio.all_tasks()) == 1
    assert "the shared limits failed to close" in caplog.text
    assert "shop" not in caplog.text


async def test_it_ends_though_the_plugin_ignores_that_it_is_cancelled(
    clock: Ticker, shared: FakeSharedLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tornado_idv.limits.limit_exchange._RETRY_INTERVAL", 0.0)
    machine = Machine.make(shared, clock, HUNDRED)

    async def exchange(*_: object) -> list[float]:
        shared.exchanged.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        raise Unavailable("x")

    shared.exchange = exchange  # type: ignore[method-assign]
    async with asyncio.timeout(5), machine.exchange.running():
        await shared.exchanged.wait()
    assert len(asyncio.all_tasks()) == 1


async def test_many_keys_are_exchanged_in_parts(clock: Ticker, shared: FakeSharedLimits) -> None:
    machine = Machine.make(shared, clock, HUNDRED)
    for i in range(500):
        machine.allowed(key=ApiKey(f"key-{i}", b"%d" % i))
    await exchange(machine)
    assert [len(uses) for _, uses in shared.calls] == [200, 200, 100]


async def test_a_limit_with_another_rate_is_counted_apart(
    clock: Ticker, shared: FakeSharedLimits
) -> None:
    """As after a reload: the wait of the old limit does not block the key under the new one."""
    machine = Machine.make(shared, clock, Rate(3, 86400))
    assert machine.allowed(2) == 2
    await exchange(machine)
    assert machine.allowed(2) == 1
    taken = machine.limiter.take_uses()
    machine.limiter.configure(Rate(1000, 1), None, misses_log_only=False)
    machine.allowed()
    clock.now += 0.001
    assert machine.allowed() == 1
    for use in taken:  # whose exchange was under way
        machine.limiter.advance(use, clock.now + 86400)
    clock.now += 1
    assert machine.allowed() == 1
    await exchange(machine)
    assert len(shared.tats) == 2
    assert machine.allowed(1000) >= 998

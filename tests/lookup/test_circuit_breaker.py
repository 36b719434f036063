"""A circuit opens after failures in a row, and closes when a probe of its own succeeds."""

import pytest

from support.fakes.clock_and_backends import Ticker
from tornado_idv.interfaces.backend import BreakerOptions
from tornado_idv.lookup.circuit_breaker import CircuitBreaker, Permit

LIMITS = BreakerOptions(failures=5, open_for=5.0, open_max=60.0)


@pytest.fixture
def ticker() -> Ticker:
    return Ticker()


@pytest.fixture
def breaker(ticker: Ticker) -> CircuitBreaker:
    """Chance adds nothing to its times and takes nothing off."""
    return CircuitBreaker(LIMITS, ticker, lambda: 0.5)


def fail(breaker: CircuitBreaker, times: int = 5) -> None:
    for _ in range(times):
        breaker.failed(entered(breaker))


def entered(breaker: CircuitBreaker) -> Permit:
    entered = breaker.try_acquire()
    assert entered is not None
    return entered


def open_time(breaker: CircuitBreaker, ticker: Ticker) -> float:
    """Seconds for which every call is rejected; the probe that follows stays in progress."""
    began = ticker.now
    while (let_in := breaker.try_acquire()) is None:
        ticker.now += 0.25
    assert let_in == "probe"
    return ticker.now - began


@pytest.mark.parametrize("failures", [1, 2, 7])
def test_how_many_failures_open_it_is_configured(ticker: Ticker, failures: int) -> None:
    breaker = CircuitBreaker(BreakerOptions(failures=failures), ticker)
    fail(breaker, failures - 1)
    assert breaker.try_acquire() == "regular"
    fail(breaker, 1)
    assert breaker.try_acquire() is None


def test_a_success_between_failures_resets_the_count(breaker: CircuitBreaker) -> None:
    for _ in range(3):
        fail(breaker, 4)
        breaker.succeeded(entered(breaker))
    assert breaker.try_acquire() == "regular"


def test_an_abandoned_call_neither_counts_nor_resets_the_count(breaker: CircuitBreaker) -> None:
    fail(breaker, 4)
    for _ in range(10):
        breaker.abandoned(entered(breaker))
    assert breaker.try_acquire() == "regular"
    fail(breaker, 1)
    assert breaker.try_acquire() is None


@pytest.mark.parametrize(
    ("chance", "times"),
    [(0.0, [4, 8, 16, 32, 48, 48]), (0.5, [5, 10, 20, 40, 60, 60]), (1.0, [6, 12, 24, 48, 72, 72])],
    ids=["least", "mean", "most"],
)
def test_each_probe_that_fails_doubles_the_time_which_chance_spreads_by_a_fifth(
    ticker: Ticker, chance: float, times: list[float]
) -> None:
    breaker = CircuitBreaker(LIMITS, ticker, lambda: chance)
    fail(breaker)
    for seconds in times:
        began = ticker.now
        ticker.now = began + seconds - 0.001
        assert breaker.try_acquire() is None
        ticker.now = began + seconds + 0.001
        assert breaker.try_acquire() == "probe"
        breaker.failed("probe")


def test_its_state_is_half_open_from_when_a_probe_may_come_until_that_ends(
    breaker: CircuitBreaker, ticker: Ticker
) -> None:
    assert (breaker.state, breaker.next_probe) == ("closed", 0)
    fail(breaker)
    assert (breaker.state, breaker.next_probe) == ("open", 5)
    ticker.now += 4
    assert (breaker.state, breaker.next_probe) == ("open", 1)
    for _ in range(2):
        ticker.now += 1
        assert (breaker.state, breaker.next_probe) == ("half_open", 0)
    probe = entered(breaker)
    assert (breaker.state, breaker.next_probe) == ("half_open", 0)
    breaker.failed(probe)
    assert (breaker.state, breaker.next_probe) == ("open", 10)


def test_a_probe_that_succeeds_closes_it_and_its_time_is_the_first_again(
    breaker: CircuitBreaker, ticker: Ticker
) -> None:
    fail(breaker)
    for _ in range(3):
        open_time(breaker, ticker)
        breaker.failed("probe")
    open_time(breaker, ticker)
    breaker.succeeded("probe")
    assert [breaker.try_acquire() for _ in range(10)] == ["regular"] * 10
    fail(breaker, 4)
    assert breaker.try_acquire() == "regular"
    fail(breaker, 1)
    assert open_time(breaker, ticker) == 5


def test_one_caller_at_a_time_probes_until_it_leaves(
    breaker: CircuitBreaker, ticker: Ticker
) -> None:
    fail(breaker)
    open_time(breaker, ticker)
    ticker.now += 1000
    assert breaker.try_acquire() is None
    breaker.abandoned("probe")
    assert breaker.try_acquire() == "probe"
    breaker.failed("probe")
    assert open_time(breaker, ticker) == 10


def test_late_ends_from_before_the_opening_change_nothing(
    breaker: CircuitBreaker, ticker: Ticker
) -> None:
    late = [entered(breaker) for _ in range(10)]
    fail(breaker)

    def end_late() -> None:
        for each in late:
            breaker.failed(each)
        breaker.succeeded(late[0])
        breaker.abandoned(late[0])

    ticker.now += 3
    end_late()
    assert open_time(breaker, ticker) == 2
    end_late()
    assert breaker.try_acquire() is None, "one probe is under way still"
    assert breaker.failures == 5


def test_retry_lets_the_next_call_probe_an_open_circuit_only(breaker: CircuitBreaker) -> None:
    breaker.retry()
    assert breaker.state == "closed"
    fail(breaker)
    breaker.retry()
    assert [breaker.try_acquire() for _ in range(2)] == ["probe", None]
    breaker.retry()
    assert breaker.try_acquire() is None
    breaker.failed("probe")
    assert breaker.state == "open"

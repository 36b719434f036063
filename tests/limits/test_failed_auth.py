"""The limit of failed authentication: per address, in a table of fixed size."""

import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fakes.clock_and_backends import Ticker
from tornado_idv.limits import FailedAuthLimiter
from tornado_idv.units import Rate

MINUTE = Rate(60, 60)


@pytest.fixture
def clock() -> Ticker:
    return Ticker()


@pytest.fixture
def limiter(clock: Ticker) -> FailedAuthLimiter:
    limiter = make_limiter(clock)
    limiter._secret = b"fixed, so that no test is random"  # noqa: SLF001 - chance and time of the test
    return limiter


def make_limiter(clock: Ticker, rate: Rate = MINUTE, places: int = 65_536) -> FailedAuthLimiter:
    limiter = FailedAuthLimiter(clock=clock, places=places)
    limiter.configure(rate)
    return limiter


def failures(limiter: FailedAuthLimiter, address: str, attempts: int = 100) -> int:
    """Return how many of some failures are within the limit."""
    return sum(limiter.acquire(address) is None for _ in range(attempts))


def test_address_may_fail_as_often_as_the_limit_says(
    limiter: FailedAuthLimiter, clock: Ticker
) -> None:
    assert failures(limiter, "192.0.2.1") == 60
    exceeded = limiter.acquire("192.0.2.1")
    assert exceeded is not None
    assert (exceeded.limit.name, exceeded.wait) == ("failed_auth", 1.0)
    for pause, allowed in ((0.875, 0), (0.125, 1), (30, 30)):
        clock.now += pause
        assert failures(limiter, "192.0.2.1") == allowed


@pytest.mark.parametrize(
    "others",
    [["192.0.2.2", "192.0.3.1", "unix:"], ["2001:db8:0:2::1", "2001:db8:1:1::1", "192.0.2.1"]],
    ids=["IPv4", "IPv6"],
)
def test_other_addresses_are_counted_apart(limiter: FailedAuthLimiter, others: list[str]) -> None:
    failures(limiter, "192.0.2.1" if "unix:" in others else "2001:db8:0:1::1")
    assert [failures(limiter, each) for each in others] == [60] * len(others)


@given(st.integers(0, 2**64 - 1))
def test_the_addresses_of_one_ipv6_network_are_counted_together(host: int) -> None:
    limiter = make_limiter(Ticker(), places=1024)
    failures(limiter, "2001:db8:0:1::")
    groups = ":".join(f"{host:016x}"[i : i + 4] for i in range(0, 16, 4))
    assert failures(limiter, f"2001:db8:0:1:{groups}") == 0


@pytest.mark.slow
def test_a_crowd_of_guessing_addresses_limits_hardly_any_other(limiter: FailedAuthLimiter) -> None:
    for i in range(1000):
        failures(limiter, f"198.51.{i >> 8}.{i & 255}", attempts=60)
    innocent = [f"10.0.{i >> 8}.{i & 255}" for i in range(5_000)]
    limited = [each for each in innocent if limiter.acquire(each) is not None]
    assert len(limited) < 5


@pytest.mark.slow
@given(st.lists(st.integers(0, 9), min_size=100, max_size=100))
def test_no_address_fails_more_often_than_the_limit(order: list[int]) -> None:
    """In a table so small that all share places, failures of others only add to its own."""
    limiter = make_limiter(Ticker(), Rate(5, 60), places=4)
    allowed = Counter(i for i in order if limiter.acquire(f"192.0.2.{i}") is None)
    assert all(count <= 5 for count in allowed.values())


def test_memory_does_not_grow_with_addresses(limiter: FailedAuthLimiter) -> None:
    limiter.acquire("192.0.2.1")
    tracemalloc.start()
    try:
        for i in range(5_000):
            limiter.acquire(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}")
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Other threads, such as services of other tests, may allocate meanwhile.
    own = snapshot.filter_traces(
        [tracemalloc.Filter(inclusive=True, filename_pattern="*/tornado_idv/limits.py")]
    )
    assert sum(trace.size for trace in own.traces) < 10_000


def test_which_addresses_share_a_place_cannot_be_predicted(clock: Ticker) -> None:
    """The hash has a random key."""
    one, other = (make_limiter(clock) for _ in range(2))
    addresses = [f"192.0.2.{i}" for i in range(20)]
    first, second = (
        [each._find_places(address) for address in addresses]  # noqa: SLF001 - places in a table of fixed size
        for each in (one, other)
    )
    assert first != second


def test_another_rate_discards_the_failures_that_were_counted(limiter: FailedAuthLimiter) -> None:
    addresses = [f"192.0.2.{i}" for i in range(8)]
    for rate, count in ((Rate(5, 60), 5), (None, 100), (MINUTE, 60), (Rate(60, 60), 0)):
        limiter.configure(rate)
        assert [failures(limiter, address) for address in addresses] == [count] * 8

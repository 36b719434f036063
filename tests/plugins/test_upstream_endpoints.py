"""Which endpoint is asked next."""

from __future__ import annotations

import logging

import pytest
from fakes import Ticker

from idv_upstream.endpoints import Endpoint, Endpoints
from tornado_idv import Unavailable


class Watched:
    """Endpoints a, b and c, and their timer."""

    def __init__(self, *addresses: str) -> None:
        self.ticker = Ticker()
        self.endpoints = Endpoints(addresses or ("a", "b", "c"), "crm", self.ticker)

    def pick(self) -> Endpoint:
        return self.endpoints.pick()

    def next(self) -> str:
        """The address that a request goes to that is answered."""
        endpoint = self.pick()
        self.endpoints.answered(endpoint)
        return endpoint.address

    def fail(self, *addresses: str) -> None:
        for address in addresses:
            self.endpoints.failed(self.named(address))

    def named(self, address: str) -> Endpoint:
        return next(each for each in self.endpoints._all if each.address == address)

    def wait(self, address: str, seconds: float) -> None:
        self.endpoints.told_to_wait(self.named(address), seconds)


def test_the_first_is_asked_as_long_as_it_answers() -> None:
    """The others are for when it does not."""
    watched = Watched()
    assert [watched.next() for _ in range(3)] == ["a", "a", "a"]


def test_one_that_failed_rests_and_the_next_is_asked() -> None:
    """For five seconds, and then the first is the first again."""
    watched = Watched()
    watched.fail("a")
    assert watched.next() == "b"
    watched.ticker.now += 4.999
    assert watched.next() == "b"
    watched.ticker.now += 0.001
    assert [watched.next(), watched.next()] == ["a", "a"]


def test_a_rest_that_is_over_is_tried_by_one_request() -> None:
    """Until it has answered, the others stay where they are answered."""
    watched = Watched()
    watched.fail("a")
    watched.ticker.now += 5
    probe = watched.pick()
    assert probe.address == "a"
    assert [watched.pick().address for _ in range(3)] == ["b", "b", "b"]
    watched.endpoints.answered(probe)
    assert watched.pick().address == "a"


def test_a_trial_that_never_ends_is_followed_by_another() -> None:
    """Whoever made it may have left."""
    watched = Watched()
    watched.fail("a")
    watched.ticker.now += 5
    assert watched.pick().address == "a"
    watched.ticker.now += 5
    assert watched.pick().address == "a"


def test_if_all_rest_the_one_whose_rest_ends_first_is_asked() -> None:
    """A try is better than none."""
    watched = Watched()
    for address in ("b", "a", "c"):
        watched.fail(address)
        watched.ticker.now += 1
    assert watched.pick().address == "b"


def test_one_that_failed_just_now_is_taken_only_if_it_is_alone() -> None:
    """Resting or not, another one is better."""
    watched = Watched("a", "b")
    watched.fail("b", "a")
    assert watched.endpoints.pick(but=watched.named("b")).address == "a"
    alone = Watched("a")
    assert alone.endpoints.pick(but=alone.named("a")).address == "a"


def test_one_alone_never_rests() -> None:
    """The breaker of the backend is there for it."""
    watched = Watched("a")
    watched.fail("a")
    assert not watched.pick().rests_until


def test_whoever_asks_to_wait_is_not_asked_until_then() -> None:
    """Not even alone; meanwhile the others are."""
    watched = Watched("a", "b")
    watched.wait("a", 7)
    assert watched.next() == "b"
    watched.wait("b", 3)
    with pytest.raises(Unavailable, match="asked to wait"):
        watched.pick()
    watched.ticker.now += 3
    assert watched.next() == "b"
    watched.ticker.now += 4
    assert watched.next() == "a"


def test_an_answer_that_was_under_way_does_not_end_a_wait() -> None:
    """It was asked for before."""
    watched = Watched("a", "b")
    watched.wait("a", 7)
    watched.endpoints.answered(watched.named("a"))
    assert watched.next() == "b"


def test_a_minute_is_the_longest_wait() -> None:
    """However long it asks for."""
    watched = Watched("a")
    watched.wait("a", 3600)
    watched.ticker.now += 59
    with pytest.raises(Unavailable):
        watched.pick()
    watched.ticker.now += 1
    assert watched.next() == "a"


def test_the_operator_is_told_once_that_one_fails_and_once_that_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many requests meet it."""
    caplog.set_level(logging.INFO)
    watched = Watched()
    watched.fail("a", "a")
    watched.ticker.now += 5
    assert [watched.next(), watched.next()] == ["a", "a"]
    assert caplog.messages == ["backend crm: a fails, and rests", "backend crm: a answers again"]

"""Which endpoint is used next."""

from __future__ import annotations

import logging

import pytest
from multidict import CIMultiDict

from idv_upstream.response.raw import Response
from idv_upstream.transport.endpoints import Endpoint, Endpoints
from support.fakes.clock_and_backends import Ticker


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
        self.receive(endpoint)
        return endpoint.address

    def receive(self, endpoint: Endpoint, status: int = 200, **fields: str) -> None:
        """Have the endpoint respond to a request."""
        self.endpoints.record(endpoint, Response(status, CIMultiDict(fields), b""))

    def fail(self, *addresses: str) -> None:
        for address in addresses:
            self.receive(self.named(address), 502)

    def named(self, address: str) -> Endpoint:
        return next(each for each in self.endpoints._all if each.address == address)

    def wait(self, address: str, seconds: int) -> None:
        self.receive(self.named(address), 429, **{"Retry-After": str(seconds)})


def test_failed_endpoint_is_probed_by_one_request() -> None:
    """Until it gets a response, the rest use another endpoint."""
    watched = Watched()
    watched.fail("a")
    watched.ticker.now += 5
    probe = watched.pick()
    assert probe.address == "a"
    assert [watched.pick().address for _ in range(3)] == ["b", "b", "b"]
    watched.receive(probe)
    assert watched.pick().address == "a"


def test_probe_without_result_is_followed_by_another() -> None:
    """It may have been cancelled."""
    watched = Watched()
    watched.fail("a")
    watched.ticker.now += 5
    assert watched.pick().address == "a"
    watched.ticker.now += 5
    assert watched.pick().address == "a"


def test_if_all_failed_the_one_that_failed_first_is_used() -> None:
    """A request that may fail is better than none."""
    watched = Watched()
    for address in ("b", "a", "c"):
        watched.fail(address)
        watched.ticker.now += 1
    assert watched.pick().address == "b"


def test_response_to_an_earlier_request_does_not_end_retry_after() -> None:
    """It was sent before."""
    watched = Watched("a", "b")
    watched.wait("a", 7)
    watched.receive(watched.named("a"))
    assert watched.next() == "b"


def test_failure_and_recovery_of_an_endpoint_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many requests it affects."""
    caplog.set_level(logging.INFO)
    Watched("a").fail("a")  # the only one is never down
    watched = Watched()
    watched.fail("a", "a")
    watched.ticker.now += 5
    assert [watched.next(), watched.next()] == ["a", "a"]
    assert caplog.messages == [
        "backend crm: endpoint a failed; others are used, next probe in 5 s",
        "backend crm: endpoint a is up again",
    ]

"""Rate limits mean the same on the normal path and on the fast path."""

import json
import re
from collections.abc import Callable
from math import inf

import pytest

from support.http.contract_values import TABLE
from support.http.in_process import ALICE, Harness, ask_for
from support.processes.service import CARDS_ONLY_KEY, EXPIRED_KEY

pytestmark = pytest.mark.slow

MakeHarness = Callable[..., Harness]
WRONG_KEY = "B" * 40


def statuses(harness: Harness, *requests: bytes, ip: str = "127.0.0.1") -> list[int]:
    """Return the statuses of requests that are sent one after the other on one connection."""
    return harness.call(ip).send(*requests).statuses


def retry_after(harness: Harness, request: bytes) -> int:
    """Return the ``Retry-After`` of a request that is refused."""
    sent = bytes(harness.ask(request).socket.sent)
    assert sent.startswith(b"HTTP/1.1 429 ")
    seconds = re.search(rb"\r\nRetry-After: (\d+)\r\n", sent)
    assert seconds is not None
    return int(seconds[1])


@pytest.fixture(params=[True, False], ids=["fast path", "normal path"])
def make(request: pytest.FixtureRequest, make_harness: MakeHarness) -> MakeHarness:
    return lambda **options: make_harness(fast_path=request.param, **options)


def test_the_next_request_is_allowed_at_retry_after(make: MakeHarness) -> None:
    harness = make(requests="10/70 seconds")
    assert statuses(harness, *[ask_for("alice")] * 11) == [200] * 10 + [429]
    harness.loop.now += 2.5
    assert retry_after(harness, ask_for("alice")) == 5
    harness.loop.now += 4.4
    assert statuses(harness, ask_for("alice")) == [429]
    harness.loop.now += 0.6
    assert statuses(harness, ask_for("alice")) == [200]


def test_a_request_is_counted_once_whatever_its_path(make_harness: MakeHarness) -> None:
    """Those that the fast path recognizes, and for which the answer has expired, too."""
    harness = make_harness(requests="12/hour")
    client = harness.call()
    for _ in range(4):
        client.send(*[ask_for("alice")] * 3)
        harness.users.put(ALICE)  # purges the answers
    assert client.statuses == [200] * 12
    assert harness.app.asked < 12
    assert statuses(harness, ask_for("alice")) == [429]


def test_fields_name_the_limit(make: MakeHarness) -> None:
    harness = make(misses="2/10 minutes")
    refused = harness.ask(*[ask_for("nobody")] * 3).steady.partition(b"HTTP/1.1 429")[2]
    assert refused.split(b"\r\n") == [
        b" Too Many Requests",
        b"Content-Type: application/json",
        b"",
        b"Cache-Control: no-store",
        b"X-Content-Type-Options: nosniff",
        b"",
        b"Retry-After: 300",
        b'RateLimit-Policy: "misses";q=2;w=600',
        b'RateLimit: "misses";r=0;t=300',
        b"Content-Length: 70",
        b"",
        b'{"status":"error","code":"rate_limited","message":"Too many requests"}',
    ]


def test_limits_that_are_not_exceeded_change_no_response(make_harness: MakeHarness) -> None:
    """Those of the contract, each sent three times so that the fast path learns them."""
    plain = make_harness()
    limited = make_harness(requests="1000/second", misses="1000/second", failed_auth="1000/second")
    for name, data in TABLE.items():
        for _ in range(3):
            assert limited.ask(data).steady == plain.ask(data).steady, name
    assert limited.access() == plain.access()


@pytest.mark.parametrize(("data", "status"), [(ask_for("nobody"), 404), (ask_for("a b"), 422)])
def test_misses_over_budget_refuse_each_lookup(make: MakeHarness, data: bytes, status: int) -> None:
    harness = make(misses="6/minute")
    assert statuses(harness, *[data] * 6, ask_for("alice")) == [status] * 6 + [429]
    harness.loop.now += 10
    found = [ask_for("alice")] * 20
    assert statuses(harness, *found, data, *found) == [200] * 20 + [status] + [429] * 20


def test_found_users_and_failures_are_no_misses(make: MakeHarness) -> None:
    harness = make(misses="1/hour")
    harness.users.down = True
    assert set(statuses(harness, *[ask_for("bob")] * 5)) == {503}
    harness.users.down = False
    assert set(statuses(harness, *[ask_for("alice")] * 5)) == {200}


OVER_THE_LIMIT = {
    "framing": (ask_for("alice").replace(b"Host: x", b"Host: x\r\nHost: x"), 400),
    "route": (ask_for("alice").replace(b"identify/url", b"identify"), 404),
    "method": (ask_for("alice").replace(b"POST", b"PUT"), 405),
    "authentication": (ask_for("alice", key=WRONG_KEY), 401),
    "scope": (ask_for("alice", key=CARDS_ONLY_KEY), 403),
    "rate limit": (ask_for("alice"), 429),
    "media type": (ask_for("alice", b"Content-Type: text/plain"), 429),
    "body": (ask_for("alice").replace(b"{", b"["), 429),
    "format": (ask_for("a b"), 429),
    "lookup": (ask_for("nobody"), 429),
    "key": (b"GET /api/v1/key" + ask_for("", b"Accept: text/html")[25:], 429),
}


@pytest.mark.parametrize(("data", "status"), OVER_THE_LIMIT.values(), ids=OVER_THE_LIMIT)
def test_the_limit_is_checked_after_the_scope_and_before_the_media_type(
    make: MakeHarness, data: bytes, status: int
) -> None:
    harness = make(requests="1/hour")
    assert statuses(harness, ask_for("alice"), data) == [200, status]


@pytest.mark.parametrize(
    "data",
    [
        ask_for("alice", key=WRONG_KEY),
        ask_for("alice", key=EXPIRED_KEY),
        ask_for("alice").replace(b"Authorization", b"X-Authorization"),
        ask_for("alice").replace(b"Bearer", b"Basic"),
    ],
    ids=["unknown", "expired", "missing", "malformed"],
)
def test_failed_authentication_over_limit_is_429_not_401(make: MakeHarness, data: bytes) -> None:
    harness = make(failed_auth="60/minute")
    assert statuses(harness, *[data] * 80) == [401] * 60 + [429] * 20
    harness.loop.now += 2
    assert statuses(harness, *[data] * 3) == [401] * 2 + [429]


def test_a_valid_key_is_not_refused_because_of_its_address(make: MakeHarness) -> None:
    harness = make(failed_auth="5/hour", requests="100/second")
    assert statuses(harness, *[ask_for("alice", key=WRONG_KEY)] * 50)[-1] == 429
    assert statuses(harness, *[ask_for("alice")] * 50) == [200] * 50
    assert statuses(harness, ask_for("alice", key=CARDS_ONLY_KEY)) == [403]
    harness.keys.complete_until = -inf  # from now on, the key may be a valid one of the key store
    assert statuses(harness, ask_for("alice", key=WRONG_KEY)) == [503]


def test_the_address_behind_trusted_proxies_is_counted(make: MakeHarness) -> None:
    harness = make(failed_auth="1/hour", proxies=["10.0.0.0/8"])

    def wrong(client: bytes) -> bytes:
        return ask_for("alice", b"X-Forwarded-For: " + client, key=WRONG_KEY)

    from_proxy = [wrong(b"192.0.2.1"), wrong(b"192.0.2.1"), wrong(b"192.0.2.2")]
    assert statuses(harness, *from_proxy, ip="10.0.0.1") == [401, 429, 401]
    forged = [wrong(b"192.0.2.8"), wrong(b"192.0.2.9")]
    assert statuses(harness, *forged, ip="203.0.113.1") == [401, 429]


def test_the_access_log_names_the_limit(make: MakeHarness) -> None:
    harness = make(requests="2/hour", failed_auth="1/hour")
    wrong = ask_for("alice", key=EXPIRED_KEY)
    statuses(harness, wrong, wrong, ask_for("alice", key=WRONG_KEY), *[ask_for("alice")] * 3)
    harness.access()
    lines = [json.loads(line) for line in "".join(harness.logged).splitlines()]
    refused = [line for line in lines if line["status"] == 429]
    assert [(line["key"], line["code"], line["reason"]) for line in refused] == [
        ("expired", "rate_limited", "failed_auth"),
        (None, "rate_limited", "failed_auth"),
        ("caller", "rate_limited", "requests"),
    ]

"""When a request is repeated."""

import asyncio
import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from unittest.mock import AsyncMock

import pytest

from idv_upstream.request.template import Request
from idv_upstream.response.raw import retry_after
from support.fakes.clock_and_backends import LoopClock, Ticker
from support.http.scripted_server import Said, http, serving
from support.http.upstream_transport import (
    GET,
    GOOD,
    POST,
    ask,
    asked,
    failure_of,
    given_up,
    opened,
)
from tornado_idv import Unavailable

PART = http(200, b"{}")[:-1]
RESET, CLOSED = Said(then="reset"), Said(then="close")


@pytest.mark.parametrize("first", [RESET, CLOSED, http(502), http(503), http(504)])
async def test_repeatable_request_is_repeated_after_a_pause(first: Said | bytes) -> None:
    pauses = AsyncMock()
    async with asked(first, GOOD, pause=pauses, chance=lambda: 0.5) as (upstream, made):
        assert (await ask(made)).status == 200
    pauses.assert_awaited_once_with(pytest.approx(0.03))
    assert upstream.targets == ["/people/alice?plan=1"] * 2


@pytest.mark.parametrize(
    ("first", "sent"), [(http(503), POST), (http(500), GET), (http(429), GET), (http(404), GET)]
)
async def test_any_other_response_is_not_repeated(first: bytes, sent: Request) -> None:
    async with asked(first, GOOD) as (upstream, made):
        assert (await ask(made, sent)).status != 200
    assert len(upstream.requests) == 1


async def test_second_attempt_is_the_last() -> None:
    async with asked(http(502), http(503), GOOD) as (upstream, made):
        assert (await ask(made)).status == 503
        upstream.say(http(503), RESET, GOOD)
        assert (await failure_of(made)).reason == "connection lost"
    assert len(upstream.requests) == 4


async def test_request_is_not_repeated_after_part_of_a_response() -> None:
    """It may have been processed."""
    async with asked(Said(PART, "close"), GOOD) as (upstream, made):
        assert (await failure_of(made)).reason == "the response was cut short"
    assert len(upstream.requests) == 1


async def test_one_request_in_five_is_repeated() -> None:
    """After a quiet time, ten at once."""
    async with asked(http(503)) as (upstream, made):
        for _ in range(10):
            await ask(made)
        ten_at_first = len(upstream.requests)
        for _ in range(100):
            await ask(made)
        assert len(upstream.requests) == 110 + 10 + 109 // 5  # of the requests since the first
        await ask(made)
    assert (ten_at_first, len(upstream.requests)) == (20, 111 + 10 + 110 // 5)


async def test_second_attempt_has_the_rest_of_the_timeout() -> None:
    """There is none if the pause would outlast it."""
    async with asked(http(503), GOOD, timeout=20, chance=lambda: 100) as (upstream, made):
        upstream.gate.clear()
        waiting = asyncio.ensure_future(ask(made))
        await upstream.asked()
        LoopClock().forward(18)
        upstream.gate.set()
        assert (await waiting).status == 503
    assert len(upstream.requests) == 1
    async with asked(http(503), Said()) as (upstream, made):
        assert (await given_up(upstream, made, times=2)).reason == "cancelled by the guard"
    assert len(upstream.requests) == 2


# Retry-After


@pytest.mark.parametrize(("status", "sent", "seconds"), [(429, 7, 7), (503, 3600, 60)])
async def test_retry_after_is_respected(status: int, sent: int, seconds: float) -> None:
    """For at most a minute. There is no second attempt either."""
    ticker, answer = Ticker(), http(status, b"", f"Retry-After: {sent}")
    async with asked(answer, GOOD, timer=ticker) as (upstream, made):
        assert (await ask(made)).status == status
        for waited in (0, 4):
            ticker.now += waited
            failure = await failure_of(made)
            assert isinstance(failure, Unavailable)
            assert failure.retry_after == seconds - waited
            assert "Retry-After" in failure.reason
            assert not failure.counts_against_breaker
        ticker.now += seconds - 4
        assert (await ask(made)).status == 200
    assert len(upstream.requests) == 2


async def test_retry_after_is_not_shortened_by_a_concurrent_response() -> None:
    answers = http(503), http(429, b"", "Retry-After: 9"), http(503)
    async with asked(*answers, timer=Ticker()) as (upstream, made):
        upstream.gate.clear()
        waiting = [asyncio.ensure_future(ask(made, POST)) for _ in answers]
        await upstream.asked(3)
        upstream.gate.set()
        await asyncio.gather(*waiting)
        assert (await failure_of(made)).retry_after == 9


async def test_retry_after_of_an_absolute_url_affects_its_host_alone() -> None:
    async with serving(http(429, b"", "Retry-After: 9")) as busy, serving(GOOD) as other:
        requests = [
            Request("GET", f"{upstream.address}/x", {}, None, repeatable=True)
            for upstream in (busy, other)
        ]
        async with opened(other.address, timer=Ticker()) as made:
            assert made.shown(requests[0]).url == requests[0].url
            assert (await ask(made, requests[0])).status == 429
            assert "Retry-After" in (await failure_of(made, requests[0])).reason
            assert (await ask(made, requests[1])).status == 200
            assert (await ask(made)).status == 200


NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
DATE = {"Date": format_datetime(NOON, usegmt=True)}
LATER = format_datetime(NOON + timedelta(seconds=20), usegmt=True)
WAITS: dict[str, tuple[dict[str, str], float]] = {
    "seconds": ({"Retry-After": "30"}, 30),
    "date": ({"Retry-After": LATER, **DATE}, 20),
    "date of the past": ({"Retry-After": DATE["Date"], "Date": LATER}, 0),
    "date by our clock": ({"Retry-After": "Fri, 01 Jan 2999 12:00:00 GMT"}, math.inf),
    "date without a zone": ({"Retry-After": "Fri, 01 Jan 2999 12:00:00 -0000"}, math.inf),
    "date of a strange zone": ({"Retry-After": f"Fri, 01 Jan 2999 12:00:00 +{'9' * 20}"}, 0),
    "negative": ({"Retry-After": "-5"}, 0),
    "other digits": ({"Retry-After": "٣"}, 0),
}


@pytest.mark.parametrize(("headers", "seconds"), WAITS.values(), ids=WAITS.keys())
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float) -> None:
    waited = retry_after(headers)
    assert waited == seconds or (seconds == math.inf and waited > 10**9)

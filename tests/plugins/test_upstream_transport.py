"""What is sent to an upstream, how often and where, and what comes back."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import time
import traceback
import tracemalloc
import zlib

import pytest
from aiohttp import connector
from fakes import LoopClock
from scripted import Said, chunked, closed_port, header, http, serving
from transports import (
    GET,
    POST,
    TIMEOUT,
    ask,
    asked,
    failure_of,
    failure_told,
    given_up,
    opened,
    transport,
)

from idv_upstream import connections
from idv_upstream.bodies import MAX_ANSWER
from idv_upstream.credentials import BearerToken
from idv_upstream.request import Asking
from tornado_idv import Broken, LookupFailed, Unavailable

GOOD = http(200, b"{}")
RESET, CLOSED = Said(then="reset"), Said(then="close")


# What is sent


async def test_a_request_is_sent_as_it_is_written() -> None:
    """Nothing is encoded twice, and nothing is decoded."""
    strange = Asking(
        "PURGE", "/a%2Fb/%61?q=%40x+y&q=%C3%A9", {"X-A": "é"}, b"\0body", repeatable=True
    )
    async with serving(GOOD) as upstream, opened(upstream.address + "/base") as made:
        await ask(made, strange)
    (request,) = upstream.requests
    assert request.startswith(b"PURGE /base/a%2Fb/%61?q=%40x+y&q=%C3%A9 HTTP/1.1\r\n")
    assert request.endswith(b"\r\n\r\n\0body")
    assert "X-A: é\r\n".encode() in request


async def test_every_request_says_what_it_takes() -> None:
    """JSON, not compressed; what a request says itself comes first."""
    own = Asking("GET", "/", {"accept": "application/scim+json"}, None, repeatable=True)
    async with asked(GOOD) as (upstream, made):
        await ask(made)
        await ask(made, own)
    first, second = upstream.requests
    assert header(first, "Accept") == "application/json"
    assert header(first, "Accept-Encoding") == "identity"
    assert header(first, "User-Agent") == "tornado-idv"
    assert header(second, "Accept") == "application/scim+json"


async def test_an_absolute_url_needs_no_endpoint() -> None:
    """It goes where it says, whether endpoints are configured or not."""
    async with serving(GOOD) as upstream, opened() as bare, opened("http://127.0.0.1:1") as made:
        asking = Asking("GET", f"{upstream.address}?login=alice", {}, None, repeatable=True)
        await ask(bare, asking)
        await ask(made, asking)
    assert upstream.targets == ["/?login=alice"] * 2


async def test_what_is_shown_is_what_is_sent_but_for_the_secret() -> None:
    """An operator may look at it."""
    auth = BearerToken.model_validate({"kind": "bearer", "token": "canary"})
    made = transport("http://one", "http://two", auth=auth)
    url, headers = made.shown(POST)
    assert url == "http://one/search"
    assert headers == {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": "tornado-idv",
        "Content-Type": "application/json",
        "Authorization": "Bearer ***",
    }
    elsewhere = Asking("GET", "https://other/x", {}, None, repeatable=True)
    assert made.shown(elsewhere)[0] == "https://other/x"


async def test_the_environment_and_cookies_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy is used, and what one answer sets is not sent with the next request."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with asked(http(200, b"{}", "Set-Cookie: a=b")) as (upstream, made):
        await ask(made)
        await ask(made)
    assert [header(each, "Cookie") for each in upstream.requests] == [None, None]


async def test_connections_are_kept() -> None:
    """One after the other needs one alone, whether the body was wanted or not."""
    async with asked(GOOD) as (upstream, made):
        for _ in range(10):
            await ask(made)
            await ask(made, POST, lambda _status: False)
    assert len(upstream.requests) == 20
    assert len(upstream.connections) == 1


@pytest.mark.parametrize(("idle", "connections"), [(3.5, 1), (4.5, 2)])
async def test_connection_that_was_idle_for_four_seconds_is_not_used(
    monkeypatch: pytest.MonkeyPatch, idle: float, connections: int
) -> None:
    """Many servers close after five, and may do so just as a request is sent."""
    async with asked(GOOD) as (upstream, made):
        await ask(made)
        monkeypatch.setattr(connector, "monotonic", lambda: time.monotonic() + idle)
        await ask(made)
    assert len(upstream.connections) == connections


async def test_deadline_of_a_request_ends_with_it() -> None:
    """The next request on the same connection has a deadline of its own."""
    async with asked(GOOD) as (upstream, made):
        clock = LoopClock()
        await ask(made)
        clock.forward(TIMEOUT - 2)
        upstream.gate.clear()
        waiting = asyncio.ensure_future(ask(made))
        await upstream.asked(2)
        clock.forward(2.5)
        await asyncio.sleep(0.01)
        upstream.gate.set()
        assert (await waiting).status == 200
    assert len(upstream.connections) == 1


async def test_cancelled_request_leaves_its_response_to_nobody() -> None:
    """Its connection is closed: what comes on it would be read by the next request."""
    async with asked(http(200, b"[1]"), http(200, b"[2]")) as (upstream, made):
        upstream.gate.clear()
        cancelled = asyncio.ensure_future(ask(made))
        await upstream.asked()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        waiting = asyncio.ensure_future(ask(made))
        for _ in range(100):
            await asyncio.sleep(0)
        upstream.gate.set()
        assert (await waiting).body == b"[2]"


@pytest.mark.parametrize("stray", [http(404), http(404)[:20], b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_an_answer_that_nobody_asked_for_is_nobody_s(stray: bytes) -> None:
    """It comes when nothing is waited for, and is never taken for what is asked next."""
    async with asked(http(200, b"[1]"), http(200, b"[2]")) as (upstream, made):
        await ask(made)
        upstream.writers[0].write(stray)
        for _ in range(100):
            await asyncio.sleep(0)
        assert (await ask(made)).body == b"[2]"


@pytest.mark.parametrize(("connections", "most"), [(1, 64), (64, 64), (100, 100)])
async def test_so_many_requests_are_under_way_at_once(
    monkeypatch: pytest.MonkeyPatch, connections: int, most: int
) -> None:
    """More wait for a connection that is free again."""
    monkeypatch.setattr("idv_upstream.connections.CONNECT_TIMEOUT", 5.0)  # the machine may be busy
    async with asked(GOOD, connections=connections) as (upstream, made):
        upstream.gate.clear()
        waiting = [asyncio.ensure_future(ask(made)) for _ in range(most + 10)]
        await upstream.asked(most)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(upstream.requests) == len(upstream.connections) == most
        upstream.gate.set()
        await asyncio.gather(*waiting)
    assert len(upstream.requests) == most + 10
    assert len(upstream.connections) == most


# What comes back


@pytest.mark.parametrize("status", [200, 201, 204, 302, 307, 400, 401, 404, 429, 500])
async def test_every_status_is_an_answer(status: int) -> None:
    """A redirect is one like any other: nobody goes where it says."""
    async with serving(GOOD) as other:
        where = f"Location: {other.address}/canary"
        async with asked(http(status, b"", where, "X-Hint: yes")) as (upstream, made):
            reply = await ask(made)
    assert (reply.status, reply.headers["x-hint"], reply.body) == (status, "yes", b"")
    assert len(upstream.requests) == 1
    assert other.requests == []


async def test_a_body_is_read_where_it_is_wanted_and_nowhere_else() -> None:
    """One of 100 MB that nobody wants costs nothing."""
    huge = http(404, b"", "Transfer-Encoding: chunked") + b"6000000\r\n"
    async with asked(Said(huge, "flood"), http(200, b"[1]")) as (upstream, made):
        assert (await ask(made, GET, lambda status: status == 200)).body == b""
        assert (await ask(made, GET, lambda status: status == 200)).body == b"[1]"
    assert upstream.flooded < 20_000_000


PLAIN = b'{"plan": "Free"}'
RAW = zlib.compressobj(wbits=-15)
FORMS = {
    "by length": http(200, PLAIN),
    "in chunks": chunked(PLAIN, 3),
    "said to be identity": http(200, PLAIN, "Content-Encoding: Identity"),
    "gzip": http(200, gzip.compress(PLAIN), "Content-Encoding: GZIP"),
    "x-gzip": http(200, gzip.compress(PLAIN), "Content-Encoding: x-gzip"),
    "gzip in chunks": chunked(gzip.compress(PLAIN), 3).replace(
        b"Content-Type", b"Content-Encoding: gzip\r\nContent-Type", 1
    ),
    "deflate": http(200, zlib.compress(PLAIN), "Content-Encoding: deflate"),
    "deflate without a head": http(
        200, RAW.compress(PLAIN) + RAW.flush(), "Content-Encoding: deflate"
    ),
    "after early hints": http(103).replace(b"Content-Length: 0\r\n", b"") + http(200, PLAIN),
}


@pytest.mark.parametrize("answer", FORMS.values(), ids=FORMS.keys())
async def test_a_body_may_come_in_many_forms(answer: bytes) -> None:
    """Compressed ones too, though none was asked for."""
    async with asked(answer) as (_, made):
        assert (await ask(made)).body == PLAIN


def packed(size: int) -> bytes:
    return http(200, gzip.compress(b"0" * size), "Content-Encoding: gzip")


@pytest.mark.parametrize(
    "answer",
    [
        http(200, b"0" * MAX_ANSWER),
        chunked(b"0" * MAX_ANSWER),
        packed(MAX_ANSWER),
    ],
    ids=["by length", "in chunks", "gzip"],
)
async def test_64_kib_are_taken(answer: bytes) -> None:
    """To the last byte."""
    async with asked(answer) as (_, made):
        assert len((await ask(made)).body) == MAX_ANSWER


TOO_LONG = {
    "by length": Said(http(200, b"0" * (MAX_ANSWER + 1))),
    "in chunks": Said(chunked(b"0" * (MAX_ANSWER + 1))),
    "100 MB": Said(http(200, b"", "Transfer-Encoding: chunked") + b"6000000\r\n", "flood"),
    "without an end": Said(b"HTTP/1.1 200 OK\r\n\r\n", "flood"),
    "gzip": Said(packed(MAX_ANSWER + 1)),
    "gzip bomb": Said(packed(30_000_000)),
}


@pytest.mark.parametrize("answer", TOO_LONG.values(), ids=TOO_LONG.keys())
async def test_a_longer_answer_is_broken(answer: Said) -> None:
    """However it is framed or packed; and the next one is none the worse for it."""
    async with asked(answer, answer, GOOD) as (upstream, made):
        for _ in range(2):
            failure = await failure_of(made)
            assert isinstance(failure, Broken)
            assert failure.reason == "an answer of more than 65536 bytes"
        assert (await ask(made)).body == b"{}"
    assert upstream.flooded < 20_000_000


async def test_decompression_takes_no_more_memory_than_an_answer() -> None:
    """30 KB of gzip may hold 30 MB."""
    async with asked(packed(30_000_000)) as (_, made):
        tracemalloc.start()
        try:
            await failure_of(made)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most < 5_000_000


DAMAGED = {
    "brotli": ("br", b"canary", "of a kind that is not understood"),
    "two codings": ("gzip, gzip", b"canary", "of a kind that is not understood"),
    "no gzip": ("gzip", b"canary", "that is damaged"),
    "empty gzip": ("gzip", b"", "that is damaged"),
    "cut gzip": ("gzip", gzip.compress(PLAIN)[:-1], "that is damaged"),
    "more behind gzip": ("gzip", gzip.compress(PLAIN) + b"canary", "that is damaged"),
    "no deflate": ("deflate", b"\xff\xff", "that is damaged"),
    "empty deflate": ("deflate", b"", "that is damaged"),
}


@pytest.mark.parametrize(("coding", "body", "reason"), DAMAGED.values(), ids=DAMAGED.keys())
async def test_what_cannot_be_decompressed_is_broken(coding: str, body: bytes, reason: str) -> None:
    """It is never taken for an answer."""
    async with asked(http(200, body, f"Content-Encoding: {coding}")) as (_, made):
        failure = await failure_of(made)
    assert isinstance(failure, Broken)
    assert failure.reason == f"a compressed answer {reason}"


# What is no answer

LOST, CUT = "the connection was lost", "the answer was cut short"
PART = http(200, b"{}")[:-1]
FAILURES: dict[str, tuple[Said, type[LookupFailed], set[str]]] = {
    "closed at once": (CLOSED, Unavailable, {LOST}),
    "reset at once": (RESET, Unavailable, {LOST}),
    "closed in the head": (Said(PART[:30], "close"), Unavailable, {LOST}),
    "closed in the answer": (Said(PART, "close"), Unavailable, {CUT}),
    "reset in the answer": (Said(PART, "reset"), Unavailable, {CUT, LOST}),
    "closed in a chunk": (Said(chunked(b"{}")[:-6], "close"), Unavailable, {CUT}),
    "no HTTP": (Said(b"220 canary SMTP\r\n\r\n"), Broken, {"an answer that is not HTTP"}),
    "two lengths": (
        Said(http(200, b"{}", "Content-Length: 9")),
        Broken,
        {"an answer that is not HTTP"},
    ),
    "head without end": (
        Said(http(200, b"", f"X: {'canary' * 3000}")),
        Broken,
        {"an answer that is not HTTP"},
    ),
}
STUCK = {
    "frozen": Said(),
    "frozen in the head": Said(PART[:30]),
    "frozen in the answer": Said(PART),
    "slow": Said(
        http(200, b"", "Content-Length: 60000").replace(b"Content-Length: 0\r\n", b""), "drip"
    ),
    "slow in the head": Said(b"HTTP/1.1 200 O", "drip"),
    "only goes on": Said(b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize(("answer", "kind", "reasons"), FAILURES.values(), ids=FAILURES.keys())
async def test_what_is_no_answer_is_told_as_what_it_is(
    answer: Said, kind: type[LookupFailed], reasons: set[str]
) -> None:
    """What may not be repeated is sent once, by whatever library."""
    once = Asking("GET", "/", {}, None, repeatable=False)
    async with asked(answer) as (upstream, made):
        failure = await failure_of(made, once)
    assert isinstance(failure, kind)
    assert failure.reason in reasons
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("answer", STUCK.values(), ids=STUCK.keys())
async def test_whoever_does_not_come_to_an_end_is_unavailable(answer: Said) -> None:
    """The time is for the whole answer, not for each byte of it; it is not asked again."""
    async with asked(answer) as (upstream, made):
        failure = await given_up(upstream, made)
    assert isinstance(failure, Unavailable)
    assert failure.reason == "timed out"
    assert len(upstream.requests) == 1


async def test_a_port_where_nobody_listens_is_unavailable() -> None:
    """It is tried twice."""
    async with opened(f"http://127.0.0.1:{closed_port()}") as made:
        failure = await failure_of(made)
    assert isinstance(failure, Unavailable)
    assert failure.reason == "no connection"


async def test_whoever_takes_no_connection_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to connect is shorter than the time for an answer."""
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT", 0.05)
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for waiting in (first, second):
            waiting.settimeout(0)
            waiting.connect_ex(deaf.getsockname())
        async with opened(f"http://127.0.0.1:{deaf.getsockname()[1]}") as made:
            failure = await failure_of(made)
    assert isinstance(failure, Unavailable)
    assert failure.reason == "no connection in time"


@pytest.mark.parametrize(
    "asking",
    [
        Asking("GET", "/", {"X": "a\r\nX-Evil: 1"}, None, repeatable=True),
        Asking("GET", "http://host:99999/", {}, None, repeatable=True),
        Asking("GET", "http:///canary", {}, None, repeatable=True),
        Asking("G\nT", "/", {}, None, repeatable=True),
    ],
    ids=["header", "port", "host", "method"],
)
async def test_what_cannot_be_sent_is_broken(asking: Asking) -> None:
    """And is not sent."""
    async with asked(GOOD) as (upstream, made):
        failure = await failure_of(made, asking)
    assert isinstance(failure, Broken)
    assert failure.reason == "it cannot be asked"
    assert upstream.requests == []


# What is told


@pytest.mark.parametrize(
    "answer",
    [each[0] for each in FAILURES.values()]
    + [*STUCK.values(), *TOO_LONG.values()]
    + [Said(http(status, b"canary", "X: canary")) for status in (200, 302, 401, 503)]
    + [Said(http(503, b"", 'Set-Cookie: canary"\\[]=1'))],
)
async def test_no_failure_tells_what_was_sent_or_came(
    answer: Said, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a log record of any library at any level, nor an error, nor its traceback."""
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        caplog.set_level(logging.DEBUG, logger=name)
    auth = BearerToken.model_validate({"kind": "bearer", "token": "canary-token"})
    asking = Asking("POST", "/canary?a=canary", {"X": "canary"}, b"canary", repeatable=True)
    async with asked(answer, auth=auth) as (upstream, made):
        if answer in STUCK.values():
            told = traceback.format_exception(await given_up(upstream, made, asking))
        else:
            told = await failure_told(made, asking)
        told += [repr(made), repr(auth), caplog.text]
    assert "canary" not in "".join(told)
    assert header(upstream.requests[0], "Authorization") == "Bearer canary-token"

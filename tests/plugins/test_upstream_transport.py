"""Requests to an upstream, and its responses."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time
import traceback
import tracemalloc
import zlib
from pathlib import Path

import pytest
from aiohttp import connector

from idv_upstream.request.template import Request
from idv_upstream.response.raw import MAX_BODY
from idv_upstream.transport import client
from idv_upstream.transport.credentials import BearerToken
from support.fakes.clock_and_backends import LoopClock
from support.http.scripted_server import Said, chunked, header, http, serving
from support.http.upstream_transport import (
    GET,
    POST,
    TIMEOUT,
    ask,
    asked,
    failure_of,
    given_up,
    opened,
    traceback_of,
    transport,
)
from support.processes.loggers import log_everything
from support.processes.ports import free_port
from tornado_idv import Broken, LookupFailed, Unavailable

pytestmark = pytest.mark.slow

GOOD = http(200, b"{}")
RESET, CLOSED = Said(then="reset"), Said(then="close")


# Requests


async def test_request_is_sent_as_it_was_rendered() -> None:
    """Nothing is encoded twice, and nothing is decoded."""
    strange = Request(
        "PURGE", "/a%2Fb/%61?q=%40x+y&q=%C3%A9", {"X-A": "é"}, b"\0body", repeatable=True
    )
    async with serving(GOOD) as upstream, opened(upstream.address + "/base") as made:
        await ask(made, strange)
    (request,) = upstream.requests
    assert request.startswith(b"PURGE /base/a%2Fb/%61?q=%40x+y&q=%C3%A9 HTTP/1.1\r\n")
    assert request.endswith(b"\r\n\r\n\0body")
    assert "X-A: é\r\n".encode() in request


async def test_request_may_set_what_it_accepts() -> None:
    own = Request("GET", "/", {"accept": "application/scim+json"}, None, repeatable=True)
    async with asked(GOOD) as (upstream, made):
        await ask(made, own)
    assert header(upstream.requests[0], "Accept") == "application/scim+json"
    assert header(upstream.requests[0], "Accept-Encoding") == "identity"


async def test_absolute_url_needs_no_base_url() -> None:
    async with serving(GOOD) as upstream, opened() as bare, opened("http://127.0.0.1:1") as made:
        request = Request("GET", f"{upstream.address}?login=alice", {}, None, repeatable=True)
        await ask(bare, request)
        await ask(made, request)
    assert upstream.targets == ["/?login=alice"] * 2


async def test_shown_request_has_the_credential_masked() -> None:
    """An operator may look at it."""
    auth = BearerToken.model_validate({"kind": "bearer", "token": "canary"})
    made = transport("http://one", auth=auth)
    elsewhere = Request("GET", "https://other/x", {}, None, repeatable=True)
    for request, url in ((POST, "http://one/search"), (elsewhere, "https://other/x")):
        shown = made.shown(request)
        assert (shown.url, shown.headers["Authorization"]) == (url, "Bearer ***")


async def test_environment_and_cookies_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No proxy and no `.netrc` is used, and `Set-Cookie` is not sent back."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login another password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with asked(http(200, b"{}", "Set-Cookie: a=b")) as (upstream, made):
        await ask(made)
        await ask(made)
    for request in upstream.requests:
        assert header(request, "Cookie") is header(request, "Authorization") is None
    assert len(upstream.requests) == 2


async def test_connections_are_kept() -> None:
    """One is enough for sequential requests, whether the body is read or not."""
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


async def test_connection_of_a_cancelled_request_is_closed() -> None:
    """The next request on it would read the wrong response."""
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
async def test_unsolicited_response_is_not_read(stray: bytes) -> None:
    """It arrives on an idle connection, and must not answer the next request."""
    async with asked(http(200, b"[1]"), http(200, b"[2]")) as (upstream, made):
        await ask(made)
        upstream.writers[0].write(stray)
        for _ in range(100):
            await asyncio.sleep(0)
        assert (await ask(made)).body == b"[2]"


@pytest.mark.parametrize(("connections", "most"), [(1, 64), (64, 64), (100, 100)])
async def test_number_of_connections_is_limited(connections: int, most: int) -> None:
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


# Responses


@pytest.mark.parametrize("status", [200, 201, 204, 302, 307, 400, 401, 404, 429, 500])
async def test_response_of_any_status_is_returned(status: int) -> None:
    """A redirect is not followed."""
    async with serving(GOOD) as other:
        where = f"Location: {other.address}/canary"
        async with asked(http(status, b"", where, "X-Hint: yes")) as (upstream, made):
            reply = await ask(made)
    assert (reply.status, reply.headers["x-hint"], reply.body) == (status, "yes", b"")
    assert len(upstream.requests) == 1
    assert other.requests == []


async def test_body_is_read_only_where_it_is_wanted() -> None:
    """One of 100 MB that is not wanted costs nothing."""
    huge = http(404, b"", "Transfer-Encoding: chunked") + b"6000000\r\n"
    async with asked(Said(huge, "flood"), http(200, b"[1]")) as (upstream, made):
        assert (await ask(made, GET, lambda status: status == 200)).body == b""
        assert (await ask(made, GET, lambda status: status == 200)).body == b"[1]"
    assert upstream.flooded < 20_000_000


PLAIN = b'{"plan": "Free"}'
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
    "after early hints": http(103).replace(b"Content-Length: 0\r\n", b"") + http(200, PLAIN),
}


@pytest.mark.parametrize("answer", FORMS.values(), ids=FORMS.keys())
async def test_body_is_decoded_in_any_form(answer: bytes) -> None:
    async with asked(answer) as (_, made):
        assert (await ask(made)).body == PLAIN


def packed(size: int) -> bytes:
    return http(200, gzip.compress(b"0" * size), "Content-Encoding: gzip")


@pytest.mark.parametrize(
    "answer",
    [http(200, b"0" * MAX_BODY), chunked(b"0" * MAX_BODY), packed(MAX_BODY)],
    ids=["by length", "in chunks", "gzip"],
)
async def test_body_of_64_kib_is_accepted(answer: bytes) -> None:
    async with asked(answer) as (_, made):
        assert len((await ask(made)).body) == MAX_BODY


TOO_LONG = {
    "by length": Said(http(200, b"0" * (MAX_BODY + 1))),
    "in chunks": Said(chunked(b"0" * (MAX_BODY + 1))),
    "100 MB": Said(http(200, b"", "Transfer-Encoding: chunked") + b"6000000\r\n", "flood"),
    "without an end": Said(b"HTTP/1.1 200 OK\r\n\r\n", "flood"),
    "gzip": Said(packed(MAX_BODY + 1)),
    "gzip bomb": Said(packed(3_000_000)),
}


@pytest.mark.parametrize("answer", TOO_LONG.values(), ids=TOO_LONG.keys())
async def test_longer_body_is_broken(answer: Said) -> None:
    """However it is framed or compressed; the next request is not affected."""
    async with asked(answer, answer, GOOD) as (upstream, made):
        for _ in range(2):
            failure = await failure_of(made)
            assert isinstance(failure, Broken)
            assert failure.reason == "a response of more than 65536 bytes"
        assert (await ask(made)).body == b"{}"
    assert upstream.flooded < 20_000_000


async def test_decompression_is_bounded_in_memory() -> None:
    """30 KB of gzip may hold 30 MB."""
    async with asked(packed(30_000_000)) as (_, made):
        tracemalloc.start()
        try:
            await failure_of(made)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most < 5_000_000


async def test_body_without_a_byte_in_chunks_is_whole() -> None:
    async with asked(chunked(b"")) as (_, made):
        assert (await ask(made)).body == b""


DAMAGED = {
    "brotli": ("br", b"canary", "of an unsupported kind"),
    "two codings": ("gzip, gzip", b"canary", "of an unsupported kind"),
    "no gzip": ("gzip", b"canary", "that is damaged"),
    "cut gzip": ("gzip", gzip.compress(PLAIN)[:-1], "that is damaged"),
    "more behind gzip": ("gzip", gzip.compress(PLAIN) + b"canary", "that is damaged"),
}


@pytest.mark.parametrize(("coding", "body", "reason"), DAMAGED.values(), ids=DAMAGED.keys())
async def test_body_that_cannot_be_decompressed_is_broken(
    coding: str, body: bytes, reason: str
) -> None:
    async with asked(http(200, body, f"Content-Encoding: {coding}")) as (_, made):
        failure = await failure_of(made)
    assert isinstance(failure, Broken)
    assert failure.reason == f"a compressed response {reason}"


# No response

LOST, CUT = "connection lost", "the response was cut short"
PART = http(200, b"{}")[:-1]
FAILURES: dict[str, tuple[Said, type[LookupFailed], set[str]]] = {
    "closed at once": (CLOSED, Unavailable, {LOST}),
    "reset at once": (RESET, Unavailable, {LOST}),
    "closed in the head": (Said(PART[:30], "close"), Unavailable, {LOST}),
    "closed in the answer": (Said(PART, "close"), Unavailable, {CUT}),
    "reset in the answer": (Said(PART, "reset"), Unavailable, {CUT, LOST}),
    "closed in a chunk": (Said(chunked(b"{}")[:-6], "close"), Unavailable, {CUT}),
    "no HTTP": (Said(b"220 canary SMTP\r\n\r\n"), Broken, {"a response that is not HTTP"}),
    "two lengths": (
        Said(http(200, b"{}", "Content-Length: 9")),
        Broken,
        {"a response that is not HTTP"},
    ),
    "head without end": (
        Said(http(200, b"", f"X: {'canary' * 3000}")),
        Broken,
        {"a response that is not HTTP"},
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
async def test_missing_response_is_reported_with_its_cause(
    answer: Said, kind: type[LookupFailed], reasons: set[str]
) -> None:
    """A request that is not repeatable is sent once: aiohttp must not repeat it either."""
    once = Request("GET", "/", {}, None, repeatable=False)
    async with asked(answer) as (upstream, made):
        failure = await failure_of(made, once)
    assert isinstance(failure, kind)
    assert failure.reason in reasons
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("answer", STUCK.values(), ids=STUCK.keys())
async def test_slow_response_times_out(answer: Said) -> None:
    """The timeout is for the whole response, not for each byte; it is not repeated."""
    async with asked(answer) as (upstream, made):
        failure = await given_up(upstream, made)
    assert isinstance(failure, Unavailable)
    assert failure.reason == "cancelled by the guard"
    assert len(upstream.requests) == 1


async def test_wait_for_a_pooled_connection_is_no_connection_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The upstream is slow, but it can be connected to."""
    monkeypatch.setattr(client, "_MIN_CONNECTIONS", 1)
    async with asked(GOOD, connections=1) as (upstream, made):
        upstream.gate.clear()
        first, second = (asyncio.ensure_future(ask(made, POST)) for _ in range(2))
        await upstream.asked()
        await LoopClock().advance(TIMEOUT - 0.5)
        upstream.gate.set()
        assert (await first).status == (await second).status == 200
    assert len(upstream.connections) == 1


async def test_refused_connection_is_unavailable() -> None:
    async with opened(f"http://127.0.0.1:{free_port()}") as made:
        failure = await failure_of(made)
    assert isinstance(failure, Unavailable)
    assert failure.reason == "connection failed"


async def test_connection_timeout_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_TIMEOUT", 0.05)
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for waiting in (first, second):
            waiting.settimeout(0)
            waiting.connect_ex(deaf.getsockname())
        async with opened(f"http://127.0.0.1:{deaf.getsockname()[1]}") as made:
            failure = await failure_of(made)
    assert isinstance(failure, Unavailable)
    assert failure.reason == "connection timed out"


@pytest.mark.parametrize(
    ("method", "url"),
    [
        *(("GET", url) for url in ("/a b", "/a#b", "/\r\nX-Evil: 1", "/\x00", "/é")),
        *(("GET", url) for url in ("http://host/a b", "http://host:99999/", "http:///canary")),
        *((method, "/") for method in ("GÉT", "G T", "GET /", "G\nT")),
        ("HEADER", "/"),
    ],
    ids=repr,
)
async def test_invalid_request_is_not_sent(method: str, url: str) -> None:
    headers = {"X": "a\r\nX-Evil: 1"} if method == "HEADER" else {}
    async with asked(GOOD) as (upstream, made):
        failure = await failure_of(made, Request(method, url, headers, None, repeatable=True))
    assert isinstance(failure, Broken)
    assert failure.reason == "the request cannot be sent"
    assert upstream.requests == []


@pytest.mark.parametrize("status", [b"099", b"000"])
async def test_status_below_100_is_a_final_response(status: bytes) -> None:
    """Not an interim one, behind which another would follow."""
    answer = b"HTTP/1.1 " + status + b" Canary\r\nContent-Length: 0\r\n\r\n"
    async with asked(answer) as (_, made):
        assert (await ask(made)).status == int(status)


# What is leaked


@pytest.mark.parametrize(
    "answer",
    [each[0] for each in FAILURES.values()]
    + [*STUCK.values(), *TOO_LONG.values()]
    + [Said(http(status, b"canary", "X: canary")) for status in (200, 302, 401, 503)]
    + [Said(http(503, b"", "Set-Cookie: canary,x=1"))],
)
async def test_no_failure_leaks_the_request_or_the_response(
    answer: Said, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in a log record of any library at any level, nor in an error or its traceback."""
    log_everything(caplog)
    auth = BearerToken.model_validate({"kind": "bearer", "token": "canary-token"})
    request = Request("POST", "/canary?a=canary", {"X": "canary"}, b"canary", repeatable=True)
    async with asked(answer, auth=auth) as (upstream, made):
        if answer in STUCK.values():
            reported = traceback.format_exception(await given_up(upstream, made, request))
        else:
            reported = await traceback_of(made, request)
        reported += [repr(made), repr(auth), caplog.text]
    assert "canary" not in "".join(reported)
    assert header(upstream.requests[0], "Authorization") == "Bearer canary-token"

"""Requests to an upstream and its responses, names of hosts, and limits."""

import asyncio
import gc
import gzip
import socket
import threading
import time
import traceback
import tracemalloc
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import connector

from idv_upstream.request.template import Request
from idv_upstream.response.raw import MAX_BODY
from idv_upstream.transport import client
from idv_upstream.transport.client import MAX_RESPONSE, NoResponse
from idv_upstream.transport.credentials import BearerToken
from support.databases.upstream_backends import upstream
from support.fakes.clock_and_backends import LoopClock
from support.http.http_server import until
from support.http.scripted_server import Said, chunked, full_listener, header, http, serving
from support.http.upstream_transport import (
    GET,
    GOOD,
    POST,
    TIMEOUT,
    ask,
    asked,
    failure_of,
    given_up,
    opened,
)
from support.processes.loggers import log_everything
from support.processes.ports import free_port
from tornado_idv import Broken, LookupFailed, Unavailable

pytestmark = pytest.mark.slow


# Requests


async def test_request_is_sent_as_it_was_rendered() -> None:
    """Nothing is encoded twice, and nothing is decoded. It may set what it accepts."""
    headers = {"X-A": "é", "accept": "application/scim+json"}
    strange = Request("PURGE", "/a%2Fb/%61?q=%40x+y&q=%C3%A9", headers, b"\0body", repeatable=True)
    async with serving(GOOD) as upstream, opened(upstream.address + "/base") as made:
        await ask(made, strange)
    (request,) = upstream.requests
    assert request.startswith(b"PURGE /base/a%2Fb/%61?q=%40x+y&q=%C3%A9 HTTP/1.1\r\n")
    assert request.endswith(b"\r\n\r\n\0body")
    assert "X-A: é\r\n".encode() in request
    assert header(request, "Accept") == "application/scim+json"
    assert header(request, "Accept-Encoding") == "identity"


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


@pytest.mark.parametrize(("connections", "most"), [(1, 64), (100, 100)])
async def test_number_of_connections_is_limited(connections: int, most: int) -> None:
    backend: Any
    async with upstream(GOOD, max_concurrent=connections) as (server, backend):
        server.gate.clear()
        waiting = [asyncio.ensure_future(ask(backend.sender)) for _ in range(most + 10)]
        await server.asked(most)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(server.requests) == len(server.connections) == most
        server.gate.set()
        await asyncio.gather(*waiting)
    assert len(server.requests) == most + 10
    assert len(server.connections) == most


# Responses


@pytest.mark.parametrize("status", [204, 302, 404, 500])
async def test_response_of_any_status_is_returned(status: int) -> None:
    async with serving(GOOD) as other:
        where = f"Location: {other.address}/canary"
        async with asked(http(status, b"", where, "X-Hint: yes")) as (upstream, made):
            reply = await ask(made)
    assert (reply.status, reply.headers["x-hint"], reply.body) == (status, "yes", b"")
    assert len(upstream.requests) == 1
    assert other.requests == []


async def test_body_is_read_only_where_it_is_wanted() -> None:
    huge = http(404, b"", "Transfer-Encoding: chunked") + b"6000000\r\n"
    async with asked(Said(huge, "flood"), http(200, b"[1]")) as (upstream, made):
        assert (await ask(made, GET, lambda status: status == 200)).body == b""
        assert (await ask(made, GET, lambda status: status == 200)).body == b"[1]"
    assert upstream.flooded < 20_000_000


PLAIN = b'{"plan": "Free"}'
FORMS = {
    "in chunks": chunked(PLAIN, 3),
    "said to be identity": http(200, PLAIN, "Content-Encoding: Identity"),
    "x-gzip": http(200, gzip.compress(PLAIN), "Content-Encoding: X-GZIP"),
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
async def test_body_of_64_kib_or_none_is_accepted(answer: bytes) -> None:
    nothing = chunked(b""), http(200), *(b"HTTP/1.1 %d A\r\n\r\n" % each for each in (204, 304))
    async with asked(answer, *nothing) as (_, made):
        assert len((await ask(made)).body) == MAX_BODY
        assert [(await ask(made)).body for _ in nothing] == [b""] * 4


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


DAMAGED = {
    "brotli": ("br", b"canary", "of an unsupported kind"),
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

LOST, CUT, NO_HTTP = "connection lost", "the response was cut short", "a response that is not HTTP"
TOO_LONG = "a response of more than 65536 bytes"
PART, CHUNKED = http(200, b"{}")[:-1], http(200, b"", "Transfer-Encoding: chunked")
FAILURES: dict[str, tuple[Said, type[LookupFailed], set[str]]] = {
    "closed at once": (Said(then="close"), Unavailable, {LOST}),
    "reset at once": (Said(then="reset"), Unavailable, {LOST}),
    "closed in the head": (Said(PART[:30], "close"), Unavailable, {LOST}),
    "closed without a body": (Said(b"HTTP/1.1 200 OK\r\n\r\n", "close"), Unavailable, {CUT}),
    "closed in the answer": (Said(PART, "close"), Unavailable, {CUT}),
    "reset in the answer": (Said(PART, "reset"), Unavailable, {CUT, LOST}),
    "closed in a chunk": (Said(chunked(b"{}")[:-6], "close"), Unavailable, {CUT}),
    "no HTTP": (Said(b"220 canary SMTP\r\n\r\n", "close"), Broken, {NO_HTTP}),
    "two lengths": (Said(http(200, b"{}", "Content-Length: 9"), "close"), Broken, {NO_HTTP}),
    "long head": (Said(http(200, b"", f"X: {'canary' * 3000}"), "close"), Broken, {NO_HTTP}),
    "too long by length": (Said(http(200, b"0" * (MAX_BODY + 1))), Broken, {TOO_LONG}),
    "too long in chunks": (Said(chunked(b"0" * (MAX_BODY + 1))), Broken, {TOO_LONG}),
    "a chunk of 100 MB": (Said(CHUNKED + b"6000000\r\n", "flood"), Broken, {TOO_LONG}),
    "without an end": (Said(b"HTTP/1.1 200 OK\r\n\r\n", "flood"), Broken, {TOO_LONG}),
    "too long in gzip": (Said(packed(MAX_BODY + 1)), Broken, {TOO_LONG}),
}
SECRETIVE = Request("POST", "/canary?a=canary", {"X": "canary"}, b"canary", repeatable=False)
AUTH = BearerToken.model_validate({"kind": "bearer", "token": "canary-token"})


@pytest.mark.parametrize(("answer", "kind", "reasons"), FAILURES.values(), ids=FAILURES.keys())
async def test_failure_is_reported_with_its_cause_alone(
    answer: Said, kind: type[LookupFailed], reasons: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The request is sent once: aiohttp must not repeat it either. The next one is not affected."""
    log_everything(caplog)
    async with asked(answer, GOOD, auth=AUTH) as (upstream, made):
        failure = await failure_of(made, SECRETIVE)
        assert len(upstream.requests) == 1
        assert (await ask(made)).body == b"{}"
        reported = [*traceback.format_exception(failure), repr([failure, made, AUTH]), caplog.text]
    assert isinstance(failure, kind)
    assert failure.reason in reasons
    assert "canary" not in "".join(reported)
    assert header(upstream.requests[0], "Authorization") == "Bearer canary-token"
    assert upstream.flooded < 20_000_000


@pytest.mark.parametrize("answer", [Said(), Said(PART), Said(b"HTTP/1.1 200 O", "drip")])
async def test_slow_response_times_out(answer: Said, caplog: pytest.LogCaptureFixture) -> None:
    """The timeout is for the whole response, not for each byte; it is not repeated."""
    log_everything(caplog)
    async with asked(answer, auth=AUTH) as (upstream, made):
        failure = await given_up(upstream, made, SECRETIVE)
    assert failure.reason == "cancelled by the guard"
    assert len(upstream.requests) == 1
    assert "canary" not in "".join([*traceback.format_exception(failure), caplog.text])


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


async def test_connection_that_fails_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with full_listener() as (host, port):
        for address, limit, reason in (
            (f"127.0.0.1:{free_port()}", 5.0, "connection failed"),
            (f"{host}:{port}", 0.05, "connection timed out"),
        ):
            monkeypatch.setattr(client, "CONNECT_TIMEOUT", limit)
            async with opened(f"http://{address}") as made:
                failure = await failure_of(made)
            assert (type(failure), failure.reason) == (NoResponse, reason)


@pytest.mark.parametrize(
    ("method", "url"),
    [
        *(("GET", url) for url in ("/a b", "/#", "/\r\nX-Evil: 1", "/\t", "/é", "http://h:99999/")),
        ("G T", "/"),
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


async def test_status_below_100_is_a_final_response() -> None:
    """Not an interim one, behind which another would follow."""
    async with asked(b"HTTP/1.1 099 Canary\r\nContent-Length: 0\r\n\r\n") as (_, made):
        assert (await ask(made)).status == 99


# Interim responses (1xx), which aiohttp reads without a bound


def interim(size: int) -> bytes:
    shortest = b"HTTP/1.1 103 Canary\r\n\r\n"
    filled = shortest * (size // len(shortest) - 1)
    rest = size - len(filled) - len(shortest)
    return filled + shortest.replace(b"Canary", b"Canary" + b"y" * rest)


async def test_response_with_its_interim_ones_is_bounded_to_the_byte() -> None:
    longest = interim(MAX_RESPONSE - len(GOOD)) + GOOD
    longer = interim(MAX_RESPONSE - len(GOOD) + 1) + GOOD
    async with asked(longest, longest, longer, GOOD) as (upstream, made):
        for _ in range(2):
            assert (await ask(made)).body == b"{}"
        assert len(upstream.connections) == 1
        failure = await failure_of(made)
        assert isinstance(failure, Broken)
        assert failure.reason == TOO_LONG
        assert (await ask(made)).body == b"{}"
    assert len(upstream.requests) == 4


async def test_idle_connection_with_interim_responses_without_end_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_KEEPALIVE_TIMEOUT", 60.0)
    async with asked(GOOD) as (upstream, made):
        await ask(made)
        upstream.writers[0].write(interim(MAX_RESPONSE + 1))
        (serving_it,) = upstream.connections
        assert serving_it is not None
        await asyncio.wait_for(serving_it, 5)
        assert (await ask(made)).body == b"{}"


async def test_lookups_work_with_an_aiohttp_that_cannot_be_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changed = SimpleNamespace(partial=lambda protocol, **given: lambda: protocol(**given))
    monkeypatch.setattr(connector, "functools", changed)
    async with asked(GOOD) as (_, made):
        assert (await ask(made)).body == b"{}"
    (warning,) = set(caplog.messages)
    assert warning.endswith(": the size of interim responses (1xx) of upstreams is not limited")


EXTENSION = CHUNKED + b"2;" + b"x" * MAX_RESPONSE + b"\r\n{}\r\n0\r\n\r\n"


@pytest.mark.parametrize("answer", [interim(MAX_RESPONSE) + http(404), EXTENSION], ids=len)
async def test_response_beyond_the_bound_is_not_parsed(answer: bytes) -> None:
    async with asked(answer) as (_, made):
        with pytest.raises(Broken, match=TOO_LONG):
            await ask(made, wants_body=lambda status: status == 200)


# Names of hosts


def resolver_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "resolver"]


def name_server(
    monkeypatch: pytest.MonkeyPatch,
    *addresses: str,
    error: Exception | None = None,
    waits_for: str | None = None,
) -> threading.Event:
    """A name server with these addresses or this error for each name.

    If names begin with ``waits_for``, it answers when the event is set.
    """
    released = threading.Event()

    def getaddrinfo(host: str, *_args: Any, **_named: Any) -> Any:
        if waits_for is not None and host.startswith(waits_for):
            released.wait(10)
        if error is not None:
            raise error
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return released


@pytest.mark.parametrize("error", [socket.gaierror(), UnicodeError("too long")], ids=repr)
async def test_host_name_is_unavailable_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Then any of its addresses is used."""
    name_server(monkeypatch, error=error)
    async with serving(GOOD) as up, opened(f"http://directory.invalid:{up.port}") as made:
        failure = await failure_of(made)
        assert isinstance(failure, NoResponse)
        assert failure.reason == "the host name cannot be resolved"
        name_server(monkeypatch, "127.0.0.2", "127.0.0.1")
        assert (await ask(made)).status == 200


async def test_error_of_a_cancelled_request_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """It arrives when no request waits for it any more."""
    released = name_server(monkeypatch, error=socket.gaierror(), waits_for="slow")
    complaints: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    async with opened("http://slow.invalid") as made:
        waiting = asyncio.ensure_future(ask(made))
        await until(resolver_threads)
        waiting.cancel()
        await asyncio.wait([waiting])
        released.set()
        await until(lambda: not resolver_threads())
        await asyncio.sleep(0)
    del made
    gc.collect()
    # From Python 3.14 on, the shield of aiohttp reports it.
    assert [each for each in complaints if "shielded" not in each["message"]] == []


async def test_name_that_is_still_being_resolved_takes_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many requests time out meanwhile; when it is resolved, its address is used."""
    monkeypatch.setattr(client, "CONNECT_TIMEOUT", 0.5)
    released = name_server(monkeypatch, "127.0.0.1", waits_for="slow")
    clock = LoopClock()
    async with serving(GOOD) as upstream, opened(f"http://slow.invalid:{upstream.port}") as made:
        for _ in range(3):
            waiting = asyncio.ensure_future(failure_of(made, POST))
            await until(resolver_threads)
            await asyncio.sleep(0)
            clock.forward(0.6)
            assert (await waiting).reason == "connection timed out"
        answered = asyncio.ensure_future(ask(made, POST))
        await asyncio.sleep(0)
        (thread,) = resolver_threads()
        released.set()
        assert (await answered).status == 200
        await asyncio.to_thread(thread.join)


async def test_hanging_name_server_does_not_delay_other_backends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many names of one backend wait for it; and its own lookups time out."""
    monkeypatch.setattr(client, "CONNECT_TIMEOUT", 3.0)
    async with serving(GOOD) as upstream:
        released = name_server(monkeypatch, "127.0.0.1", waits_for="hanging")
        async with opened() as hanging, opened(f"http://other.invalid:{upstream.port}") as other:
            requests = [
                Request("GET", f"http://hanging-{n}/", {}, None, repeatable=False)
                for n in range(40)
            ]
            waiting = [asyncio.ensure_future(ask(hanging, request)) for request in requests]
            await asyncio.sleep(0)
            assert (await ask(other)).status == 200
            assert await asyncio.to_thread(lambda: True)
            assert not any(each.done() for each in waiting)
            assert all(thread.daemon for thread in resolver_threads())  # they end with the process
            LoopClock().forward(3.5)
            failures = await asyncio.gather(*waiting, return_exceptions=True)
            released.set()
    assert {str(each) for each in failures} == {"connection timed out"}

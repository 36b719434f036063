"""An upstream that responds wrongly, late or not at all: never "not found here"."""

from __future__ import annotations

import asyncio
import gzip
import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from idv_upstream.backend import UpstreamBackend
from support.fakes.clock_and_backends import LoopClock
from support.http.scripted_server import Said, Scripted, chunked, http, serving
from support.processes.loggers import log_everything
from tornado_idv import Broken, ByCard, ByNickname, LookupFailed, Query, Unavailable, User
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.lookup.guard import Guard
from tornado_idv.registry import open_backends
from tornado_idv.testing import make_backend

NICKNAME, CARD, TOKEN = "canary-nick", "40009998887776", "canary-token+/="
CANARIES = (NICKNAME, CARD, TOKEN, "canary")
RECORD = {
    "status": "ok",
    "plan": "canary-plan",
    "card_number": CARD,
    "nickname": f"@{NICKNAME}",
    "profile_url": f"https://profiles.example/m/{NICKNAME}",
}
NOT_FOUND = {"status": "error", "code": "not_found", "message": "User not found"}
HTML = b"<!doctype html><title>canary-nick</title>"
LOST = "connection lost"
QUERIES = (ByNickname(NICKNAME), ByCard(CARD))


def asking(port: int, scheme: str = "http", **options: Any) -> AnyBackend:
    auth = {"kind": "bearer", "token": TOKEN}
    address = f"{scheme}://127.0.0.1:{port}/idv"
    options = {"base_url": address, "auth": auth, "timeout": "5s", **options}
    return make_backend(UpstreamBackend, Path(), **options)


async def failure_of(backend: AnyBackend, query: Query) -> LookupFailed:
    """The failure of a lookup as the service makes it: the guard bounds it."""
    async with open_backends([backend]):
        guard = Guard(backend, lambda _user: True)
        with pytest.raises(LookupFailed) as caught:
            await guard.find(query, asyncio.get_running_loop().time() + 10)
    return caught.value


def found(**members: Any) -> bytes:
    return http(200, json.dumps(RECORD | members).encode())


async def given_up(upstream: Scripted, backend: AnyBackend, query: Query) -> LookupFailed:
    """The failure of a lookup that times out after its request was sent."""
    waiting = asyncio.ensure_future(failure_of(backend, query))
    await upstream.asked()
    LoopClock().forward(6)
    return await waiting


def without(member: str) -> bytes:
    return http(200, json.dumps({k: v for k, v in RECORD.items() if k != member}).encode())


GOOD = json.dumps(RECORD).encode()
LONG = json.dumps(RECORD | {"plan": "p" * 100_000}).encode()
TWICE = GOOD[:-1] + b', "plan": "canary-2"}'
GZIPPED = gzip.compress(GOOD)
BOMB = gzip.compress(b" " * 3_000_000)

BAD_ANSWERS = {
    "HTML 200": (http(200, HTML, kind="text/html"), Broken, "not application/json"),
    "HTML 404": (http(404, HTML, kind="text/html"), Broken, "not application/json"),
    "HTML said to be JSON": (http(200, HTML), Broken, "not valid JSON"),
    "HTML 404 said to be JSON": (http(404, HTML), Broken, "not valid JSON"),
    "no_such_route 404": (
        http(404, json.dumps(NOT_FOUND | {"code": "no_such_route"}).encode()),
        Broken,
        'does not say "not known"',
    ),
    "empty 404": (http(404), Broken, "not valid JSON"),
    "list 404": (http(404, b"[]"), Broken, 'does not say "not known"'),
    "found 404": (http(404, GOOD), Broken, 'does not say "not known"'),
    "not_found 200": (http(200, json.dumps(NOT_FOUND).encode()), Broken, "not a record"),
    "not_found 500": (http(500, json.dumps(NOT_FOUND).encode()), Unavailable, "status 500"),
    "no media type": (http(200, GOOD, kind=""), Broken, "not application/json"),
    "text/json": (http(200, GOOD, kind="text/json"), Broken, "not application/json"),
    "400": (http(400), Broken, "unexpected status 400"),
    "401": (http(401), Broken, "our credentials are refused"),
    "403": (http(403), Broken, "our credentials are refused"),
    "407": (http(407), Broken, "our credentials are refused"),
    "408": (http(408), Unavailable, "temporarily unavailable"),
    "410": (http(410), Broken, "unexpected status 410"),
    "422": (http(422), Broken, "unexpected status 422"),
    "429": (http(429), Unavailable, "temporarily unavailable"),
    "500": (http(500), Unavailable, "temporarily unavailable"),
    "503": (http(503), Unavailable, "temporarily unavailable"),
    "599": (http(599), Unavailable, "temporarily unavailable"),
    "101": (http(101, b"", "Upgrade: tls", "Connection: upgrade"), Broken, "status 101"),
    "201": (http(201, GOOD), Broken, "unexpected status 201"),
    "204": (b"HTTP/1.1 204 Canary\r\n\r\n", Broken, "unexpected status 204"),
    "206": (http(206, GOOD), Broken, "unexpected status 206"),
    "302": (http(302, b"", "Location: /canary"), Broken, "status 302), which is not followed"),
    "307": (http(307, b"", "Location: /canary"), Broken, "status 307), which is not followed"),
    "another user": (
        found(nickname="@canary-2", card_number="40001112223334"),
        Broken,
        "response is for another user than requested",
    ),
    "another case": (
        found(nickname="@CANARY-NICK", card_number=f"0{CARD}"),
        Broken,
        "response is for another user than requested",
    ),
    "nickname without @": (found(nickname=NICKNAME), Broken, "wrong record: nickname"),
    "nickname of nothing": (found(nickname="@"), Broken, "wrong record: nickname"),
    "nickname with space": (found(nickname=f"@{NICKNAME} "), Broken, "wrong record: nickname"),
    "no plan": (without("plan"), Broken, "wrong record: plan"),
    "no profile_url": (without("profile_url"), Broken, "wrong record: profile_url"),
    "no status": (without("status"), Broken, "not a record"),
    "status error": (found(status="error"), Broken, "not a record"),
    "plan null": (found(plan=None), Broken, "wrong record: plan"),
    "plan half a pair": (found(plan="\ud800canary"), Broken, "wrong record: plan"),
    "nickname half a pair": (found(nickname="@\ud800"), Broken, "wrong record: nickname"),
    "profile_url empty": (found(profile_url=""), Broken, "wrong record: profile_url"),
    "card a number": (found(card_number=int(CARD)), Broken, "wrong record: card_number"),
    "card of other digits": (found(card_number="٤٠"), Broken, "wrong record: card_number"),
    "card with newline": (found(card_number=f"{CARD}\n"), Broken, "wrong record: card_number"),
    "list": (http(200, b"[%b]" % GOOD), Broken, "not a record"),
    "null": (http(200, b"null"), Broken, "not a record"),
    "text": (http(200, b'"canary"'), Broken, "not a record"),
    "empty": (http(200), Broken, "not valid JSON"),
    "10,000 deep": (http(200, b"[" * 10_000 + b"]" * 10_000), Broken, "not valid JSON"),
    "member named twice": (http(200, TWICE), Broken, "not valid JSON"),
    "member twice within": (
        http(200, GOOD[:-1] + b', "canary": [{"a": 1, "a": 2}]}'),
        Broken,
        "not valid JSON",
    ),
    "NaN": (http(200, GOOD[:-1] + b', "canary": NaN}'), Broken, "not valid JSON"),
    "number without end": (
        http(200, GOOD[:-1] + b', "canary": %b}' % (b"9" * 9000)),
        Broken,
        "not valid JSON",
    ),
    "two values": (http(200, GOOD + GOOD), Broken, "not valid JSON"),
    "byte order mark": (http(200, b"\xef\xbb\xbf" + GOOD), Broken, "not valid JSON"),
    "UTF-16": (http(200, GOOD.decode().encode("utf-16")), Broken, "not valid JSON"),
    "not UTF-8": (http(200, GOOD.replace(b"-plan", b"\xff")), Broken, "not valid JSON"),
    "100 KB by length": (http(200, LONG), Broken, "more than 65536 bytes"),
    "100 KB in chunks": (chunked(LONG), Broken, "more than 65536 bytes"),
    "one byte too many": (http(200, GOOD.ljust(65537)), Broken, "more than 65536 bytes"),
    "gzip bomb": (http(200, BOMB, "Content-Encoding: gzip"), Broken, "more than 65536 bytes"),
    "no gzip": (http(200, GOOD, "Content-Encoding: gzip"), Broken, "compressed response"),
    "gzip unsaid": (http(200, GZIPPED), Broken, "not valid JSON"),
    "brotli": (http(200, GZIPPED, "Content-Encoding: br"), Broken, "compressed response"),
    "chunks that are none": (
        http(200, b"canary\r\n", "Transfer-Encoding: chunked"),
        LookupFailed,
        "",
    ),
    "no HTTP": (b"220 canary SMTP\r\n\r\n", Broken, "not HTTP"),
    "two lengths": (http(200, GOOD, "Content-Length: 1"), Broken, "not HTTP"),
    "header without end": (http(200, GOOD, f"X: {'canary' * 3000}"), Broken, "not HTTP"),
    "illegal cookie": (http(503, b"", "Set-Cookie: canary,x=1"), Unavailable, "status 503"),
}
ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
BROKEN_OFF = {
    "closed at once": Said(b"", "close"),
    "reset at once": Said(b"", "reset"),
    "closed in the head": Said(found()[:30], "close"),
    "closed in the answer": Said(found()[:-1], "close"),
    "reset in the answer": Said(found()[:-1], "reset"),
    "closed in a chunk": Said(chunked(GOOD)[:-20], "close"),
    "closed before the last chunk": Said(chunked(GOOD)[:-5], "close"),
    "closed behind a head without a length": Said(ENDLESS, "close"),
    "reset behind a head without a length": Said(ENDLESS, "reset"),
    "reset in a not_found": Said(http(404, json.dumps(NOT_FOUND).encode())[:-1], "reset"),
}
NEVER_DONE = {
    "never answers": b"",
    "never ends the head": found()[:30],
    "never ends the answer": found()[:-1],
    "never ends the chunks": chunked(GOOD)[:-5],
    "only goes on": b"HTTP/1.1 100 Continue\r\n\r\n",
}


each_query = pytest.mark.parametrize(
    "query",
    [QUERIES[0], pytest.param(QUERIES[1], marks=pytest.mark.slow)],
    ids=["nickname", "card"],
)


def leaks(failure: LookupFailed, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was reported of the query or the response, in the log or by the error."""
    reported = "".join(traceback.format_exception(failure)) + repr(failure) + caplog.text
    return [canary for canary in CANARIES if canary in reported]


@each_query
@pytest.mark.parametrize(
    ("answer", "outcome", "reason"), BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys()
)
async def test_wrong_response_is_reported_with_its_cause_and_without_its_content(
    query: Query,
    answer: bytes,
    outcome: type[LookupFailed],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Redirects are not followed; 503 may be temporary, so the request is repeated once.

    No log record of any library at any level has a part of the query or the response.
    """
    log_everything(caplog)
    async with serving(answer) as upstream:
        failure = await failure_of(asking(upstream.port), query)
    assert leaks(failure, caplog) == []
    assert isinstance(failure, outcome)
    assert reason in failure.reason
    assert len(upstream.requests) == (2 if "status 503" in failure.reason else 1)
    for request in upstream.requests:
        assert request.startswith(b"POST /idv/api/v1/identify/")


@pytest.mark.parametrize("reply", BROKEN_OFF.values(), ids=BROKEN_OFF.keys())
async def test_closed_connection_is_unavailable(reply: Said) -> None:
    """The request is repeated only if no response had begun."""
    async with serving(reply) as upstream:
        failure = await failure_of(asking(upstream.port), QUERIES[0])
    assert isinstance(failure, Unavailable)
    assert failure.reason in {LOST, "the response was cut short"}
    assert len(upstream.requests) == (2 if failure.reason == LOST else 1)


@pytest.mark.parametrize("sent", NEVER_DONE.values(), ids=NEVER_DONE.keys())
async def test_incomplete_response_times_out(sent: bytes) -> None:
    """The timeout spans the whole lookup, not the wait for the next byte."""
    async with serving(sent) as upstream:
        failure = await given_up(upstream, asking(upstream.port), QUERIES[0])
    assert isinstance(failure, Unavailable)
    assert failure.reason == "no answer within 5 s"


async def test_second_attempt_has_the_rest_of_the_timeout() -> None:
    """``timeout`` is for the whole lookup, with what the first attempt took of it."""
    async with serving(http(503), Said()) as upstream:
        clock = LoopClock()
        upstream.gate.clear()
        waiting = asyncio.ensure_future(failure_of(asking(upstream.port), QUERIES[0]))
        await upstream.asked()
        clock.forward(3)
        upstream.gate.set()
        await upstream.asked(2)
        clock.forward(2.5)
        assert (await asyncio.wait_for(waiting, 1)).reason == "no answer within 5 s"


async def test_closed_port_is_unavailable() -> None:
    """The server is closed."""
    async with serving(b"") as upstream:
        pass
    failure = await failure_of(asking(upstream.port), QUERIES[0])
    assert isinstance(failure, Unavailable)
    assert failure.reason == "connection failed"


@pytest.mark.parametrize(
    "answer",
    [
        found(surprise={"a": [1, None]}),
        http(200, GOOD.ljust(65536)),
        http(200, GOOD, kind="Application/JSON; charset=utf-8"),
        http(200, GOOD, "Content-Encoding: identity"),
        http(200, GZIPPED, "Content-Encoding: gzip"),
        chunked(GOOD, 7),
        http(103).replace(b"Content-Length: 0\r\n", b"") + found(),
    ],
    ids=["more members", "64 KiB", "charset", "identity", "gzip", "chunked", "early hints"],
)
async def test_valid_response_is_accepted_in_any_form(answer: bytes) -> None:
    """Whatever HTTP and JSON allow."""
    async with serving(answer) as upstream, open_backends([asking(upstream.port)]) as (backend,):
        for query in QUERIES:
            user = await backend.find(query)
            assert isinstance(user, User)
            assert (user.nickname, user.card_number) == (NICKNAME, CARD)


async def test_failed_lookup_does_not_affect_the_next() -> None:
    """The unread rest of a response is never taken for another response."""
    async with (
        serving(http(200, LONG)) as upstream,
        open_backends([asking(upstream.port)]) as (backend,),
    ):
        for _ in range(3):
            with pytest.raises(Broken, match="more than 65536 bytes"):
                await backend.find(QUERIES[0])
        upstream.say(found())
        assert await backend.find(QUERIES[0]) is not None


@pytest.mark.slow
@each_query
@pytest.mark.parametrize(
    "reply", [*BROKEN_OFF.values(), Said(b"")], ids=[*BROKEN_OFF, "never answers"]
)
async def test_no_lost_response_leaks_the_query(
    query: Query, reply: Said, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in a log record of any library at any level, nor in an error or its traceback."""
    log_everything(caplog)
    async with serving(reply) as upstream:
        backend = asking(upstream.port)
        if reply == Said():
            failure = await given_up(upstream, backend, query)
        else:
            failure = await failure_of(backend, query)
    assert leaks(failure, caplog) == []

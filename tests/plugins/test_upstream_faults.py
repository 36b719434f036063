"""An upstream that responds wrongly, late or not at all: never "not found here"."""

from __future__ import annotations

import asyncio
import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from idv_upstream.backend import UpstreamBackend
from support.http.scripted_server import http, serving
from support.processes.loggers import log_everything
from tornado_idv import Broken, ByCard, ByNickname, LookupFailed, Query, Unavailable
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


def without(member: str) -> bytes:
    return http(200, json.dumps({k: v for k, v in RECORD.items() if k != member}).encode())


GOOD = json.dumps(RECORD).encode()
TWICE = GOOD[:-1] + b', "plan": "canary-2"}'

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
    "401": (http(401), Broken, "our credentials are refused"),
    "403": (http(403), Broken, "our credentials are refused"),
    "407": (http(407), Broken, "our credentials are refused"),
    "408": (http(408), Unavailable, "temporarily unavailable"),
    "410": (http(410), Broken, "unexpected status 410"),
    "503": (http(503), Unavailable, "temporarily unavailable"),
    "101": (http(101, b"", "Upgrade: tls", "Connection: upgrade"), Broken, "status 101"),
    "201": (http(201, GOOD), Broken, "unexpected status 201"),
    "204": (b"HTTP/1.1 204 Canary\r\n\r\n", Broken, "unexpected status 204"),
    "302": (http(302, b"", "Location: /canary"), Broken, "status 302), which is not followed"),
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
    "profile_url null": (found(profile_url=None), Broken, "wrong record: profile_url"),
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
    "NaN": (http(200, GOOD[:-1] + b', "canary": NaN}'), Broken, "not valid JSON"),
    "illegal cookie": (http(503, b"", "Set-Cookie: canary,x=1"), Unavailable, "status 503"),
}


@pytest.mark.parametrize(("answer", "kind", "reason"), BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_wrong_response_is_reported_with_its_cause_and_without_its_content(
    answer: bytes, kind: type[LookupFailed], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Redirects are not followed; 503 may be temporary, so the request is repeated once.

    No log record of any library at any level has a part of the query or the response.
    """
    log_everything(caplog)
    for query in QUERIES:
        async with serving(answer) as upstream:
            failure = await failure_of(asking(upstream.port), query)
        reported = "".join(traceback.format_exception(failure)) + repr(failure) + caplog.text
        assert [canary for canary in CANARIES if canary in reported] == []
        assert isinstance(failure, kind)
        assert reason in failure.reason
        assert len(upstream.requests) == (2 if "status 503" in failure.reason else 1)
        for request in upstream.requests:
            assert request.startswith(b"POST /idv/api/v1/identify/")

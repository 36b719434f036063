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
from tornado_idv.kit.testing import make_backend
from tornado_idv.lookup.guard import Guard
from tornado_idv.registry import open_backends

NICKNAME, CARD, TOKEN = "magpie-nick", "40009998887776", "magpie-token+/="
PRIVATE = (NICKNAME, CARD, TOKEN, "magpie")
RECORD = {
    "status": "ok",
    "plan": "magpie-plan",
    "card_number": CARD,
    "nickname": f"@{NICKNAME}",
    "profile_url": f"https://profiles.example/m/{NICKNAME}",
}
NOT_FOUND = {"status": "error", "code": "not_found", "message": "User not found"}
HTML = b"<!doctype html><title>magpie-nick</title>"
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

BAD_ANSWERS = {
    "HTML 200": (http(200, HTML, kind="text/html"), Broken, "not application/json"),
    "HTML 404": (http(404, HTML, kind="text/html"), Broken, "not application/json"),
    "no_such_route 404": (
        http(404, json.dumps(NOT_FOUND | {"code": "no_such_route"}).encode()),
        Broken,
        "not_known_when is false for",
    ),
    "found 404": (http(404, GOOD), Broken, "not_known_when is false for"),
    "not_found 200": (http(200, json.dumps(NOT_FOUND).encode()), Broken, "not a record"),
    "not_found 500": (http(500, json.dumps(NOT_FOUND).encode()), Unavailable, "status 500"),
    "401": (http(401), Broken, "the credentials are refused"),
    "101": (http(101, b"", "Upgrade: tls", "Connection: upgrade"), Broken, "status 101"),
    "204": (b"HTTP/1.1 204 Canary\r\n\r\n", Broken, "unexpected status 204"),
    "302": (http(302, b"", "Location: /magpie"), Broken, "status 302); redirects"),
    "another user": (
        found(nickname="@magpie-2", card_number="40001112223334"),
        Broken,
        "response is for a user other than requested",
    ),
    "nickname without @": (found(nickname=NICKNAME), Broken, "wrong record: nickname"),
    "no profile_url": (without("profile_url"), Broken, "wrong record: profile_url"),
    "no status": (without("status"), Broken, "not a record"),
    "status error": (found(status="error"), Broken, "not a record"),
    "profile_url null": (found(profile_url=None), Broken, "wrong record: profile_url"),
    "illegal cookie": (http(503, b"", "Set-Cookie: magpie,x=1"), Unavailable, "status 503"),
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
        assert [each for each in PRIVATE if each in reported] == []
        assert isinstance(failure, kind)
        assert reason in failure.reason
        assert len(upstream.requests) == (2 if "status 503" in failure.reason else 1)
        for request in upstream.requests:
            assert request.startswith(b"POST /idv/api/v1/identify/")

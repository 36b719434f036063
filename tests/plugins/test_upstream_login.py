"""Tokens that a login issues."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from idv_upstream.options import UpstreamOptions
from idv_upstream.transport.credentials import Credential
from support.fakes.clock_and_backends import Ticker
from support.http.scripted_server import Said, header, http, serving
from support.http.upstream_transport import Issued, ask, behind_issuer, failure_of, opened
from tornado_idv import Broken, LookupFailed, Unavailable
from tornado_idv.files import FileSecret

GOOD = http(200, b"{}")
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
DATE = f"Date: {format_datetime(NOON, usegmt=True)}"


def later(**time: float) -> datetime:
    return NOON + timedelta(**time)


def jwt(**claims: Any) -> str:
    parts = json.dumps({"alg": "HS256"}), json.dumps(claims), "signature"
    return ".".join(urlsafe_b64encode(each.encode()).decode().rstrip("=") for each in parts)


def logged_in(token: Any = "t1", status: int = 200, **members: Any) -> bytes:
    return http(status, json.dumps({"data": {"token": token, **members}}).encode(), DATE)


def login(url: str = "http://127.0.0.1:1", **options: Any) -> Credential:
    body = {"email": "idv", "password": "canary"}
    given = {"url": f"{url}/auth", "json": body, "token": "data.token"}
    built = UpstreamOptions.model_validate(
        {"name": "crm", "kind": "upstream", "base_url": "http://x",
         "auth": {"login": {**given, **options}}}
    )  # fmt: skip
    return built.auth


def behind_login(
    *logins: Said | bytes, answers: Sequence[Said | bytes] = (GOOD,), **options: Any
) -> AbstractAsyncContextManager[Issued]:
    return behind_issuer(lambda url: login(url, **options), *logins, answers=answers)


async def test_login_is_sent_as_it_is_configured() -> None:
    headers = {"X-App": "app", "content-type": "application/json; v=2"}
    options = {"headers": headers, "header": "X-Parse-Session-Token"}
    async with behind_login(logged_in(status=201), **options) as case:
        await asyncio.gather(*(ask(case.made) for _ in range(9)))
        (request,) = case.issuer.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /auth HTTP/1.1\r\n")
    assert header(request, "Content-Type") == headers["content-type"]
    assert header(request, "X-App") == "app"
    assert json.loads(body) == {"email": "idv", "password": "canary"}
    assert case.shown("X-Parse-Session-Token") == ["t1"] * 9
    assert case.shown() == [None] * 9


@pytest.mark.parametrize(
    ("token", "expires", "renewed_after"),
    [
        ("t1", 3600, 3570),
        ("t1", 20.0, 10),
        ("t1", later(minutes=30).timestamp(), 1770),
        ("t1", int(later(minutes=10).timestamp() * 1000), 570),
        ("t1", "2026-11-26T12:10:00Z", 570),
        ("t1", "2026-11-26 12:10:00", 570),
        ("t1", "2030-01-01T00:00:00Z", 3570),
        (jwt(exp=int(later(minutes=2).timestamp())), 3600, 90),
        (jwt(exp=int(later(minutes=15).timestamp())), 900_000, 870),
        (jwt(exp=10**400), 90, 60),
        (jwt(exp=int(later(minutes=15).timestamp()), id="x"), None, 870),
        (jwt(exp="soon"), None, 270),
        ("a.b.c", None, 270),
        ("a.YWJj.c", None, 270),
        ("t1", "2026-11-26T14:10:00+02:00", 570),
        ("r:a1b2c3", None, 270),
    ],
)
async def test_token_is_renewed_before_it_expires(
    token: str, expires: object, renewed_after: float
) -> None:
    """By the clock of the server, if it sends its time."""
    options = {} if expires is None else {"expires": "data.expires"}
    answer = logged_in(token, expires=expires)
    async with behind_login(answer, logged_in("t2", expires=60), **options) as case:
        await ask(case.made)
        case.timer.now += renewed_after - 0.1
        await ask(case.made)
        case.timer.now += 0.2
        await ask(case.made)
    assert case.shown() == [f"Bearer {token}"] * 2 + ["Bearer t2"]
    assert len(case.issuer.connections) == 2  # where no late response is taken for the next one


async def test_token_that_has_expired_is_still_masked() -> None:
    """The upstream may repeat the token that a lookup in flight has sent."""
    async with behind_login(logged_in("t1"), headers={"X-App": "app"}) as case:
        await ask(case.made)
        case.timer.now += 300
        assert case.made.secrets() == {"t1", "canary", "idv", "app"}


async def test_token_is_sent_as_bearer_token_whatever_the_case_of_the_header() -> None:
    async with behind_login(logged_in("t1"), header="authorization") as case:
        await ask(case.made)
    assert case.shown() == ["Bearer t1"]


EXPIRES = {"expires": "data.expires"}
FAILURES: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "no token": (
        http(200, b'{"error":"wrong password"}'), {}, "token (data.token) gives null, not a token",
    ),
    "no expiry": (logged_in(), EXPIRES, "expires (data.expires) gives null, not a time"),
    "a word": (logged_in(expires="soon"), EXPIRES, "expires (data.expires) gives"),
    "not a number": (logged_in(expires="nan"), EXPIRES, "expires (data.expires)"),
    "true": (logged_in(expires=True), EXPIRES, "expires (data.expires) gives"),
    "expired": (
        logged_in(jwt(exp=int(later(minutes=-1).timestamp()))), {},
        "the token has expired already; compare the clocks",
    ),
    "newline": (logged_in("a\r\nX: b"), {}, "token (data.token) gives text, not a token"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "options", "reason"), FAILURES.values(), ids=FAILURES)
async def test_response_without_a_token_is_broken(
    answer: bytes, options: dict[str, Any], reason: str
) -> None:
    async with behind_login(answer, **options) as case:
        failure = await failure_of(case.made)
    assert isinstance(failure, Broken)
    assert failure.reason.startswith(f"login: {reason}")
    assert case.directory.requests == []


REFUSED, BUSY = http(401), http(503)


@pytest.mark.parametrize(
    ("answers", "pauses"),
    [
        ([REFUSED], [5, 20, 80, 320, 1280, 3600, 3600]),
        ([http(404)], [5, 20, 80, 320, 1280, 3600, 3600]),
        ([http(200, b"{}")], [5, 20, 80, 320, 1280, 3600, 3600]),
        ([BUSY], [5, 5, 5]),
        ([http(429)], [5, 5, 5]),
        ([http(503, b"", "Retry-After: 30")], [30, 30, 30]),
        ([http(401, b"", "Retry-After: 30")], [30, 30, 80]),
        ([REFUSED, REFUSED, BUSY, REFUSED], [5, 20, 5, 80]),
        ([REFUSED, REFUSED, logged_in(), REFUSED], [5, 20, 270, 5, 20]),
    ],
)
async def test_refused_login_is_tried_again_ever_less_often(
    answers: list[bytes], pauses: list[float]
) -> None:
    """An account may be locked after a number of attempts; clients are not to wait as long."""
    async with behind_login(*answers) as case:
        times: list[float] = []
        while len(times) <= len(pauses):
            with suppress(LookupFailed):
                await ask(case.made)
            times += [case.timer.now] * (len(case.issuer.requests) - len(times))
            case.timer.now += 5
        assert (await failure_of(case.made)).retry_after <= 60
    assert [after - before for before, after in pairwise(times)] == pauses


async def test_login_that_does_not_respond_is_unavailable() -> None:
    async with (
        serving(Said()) as issuer,
        opened("http://x", auth=login(issuer.address), timeout=0.05) as made,
    ):
        failure = await failure_of(made)
    assert (type(failure), failure.reason) == (Unavailable, "login: timed out")


async def test_rejection_of_an_earlier_token_does_not_end_the_present_one() -> None:
    async with behind_login(logged_in("t2")) as case:
        await ask(case.made)
        assert case.made._tokens.invalidate("t1")
        await ask(case.made)
    assert len(case.issuer.requests) == 1


async def test_another_password_is_tried_as_often_as_a_first_one(tmp_path: Path) -> None:
    path, ticker = tmp_path / "password", Ticker()
    path.write_text("old")
    async with behind_login(REFUSED, json={"password": FileSecret("old", path, ticker)}) as case:
        for password, sent in (("old", 1), ("old", 2), ("new", 3), ("new", 4)):
            path.write_text(password)
            ticker.now += 1
            await failure_of(case.made)
            assert len(case.issuer.requests) == sent
            case.timer.now += 5


async def test_changed_password_is_tried_at_once(tmp_path: Path) -> None:
    """Its file is read for each login."""
    path, ticker = tmp_path / "password", Ticker()
    path.write_text("old")
    body = {"password": FileSecret("old", path, ticker)}
    async with behind_login(http(401), json=body) as case:
        for _ in range(2):
            ticker.now += 1
            assert isinstance(await failure_of(case.made), Broken)
        assert len(case.issuer.requests) == 1
        path.write_text("new")
        await failure_of(case.made)
        case.issuer.say(logged_in())
        ticker.now += 1
        case.issuer.gate.clear()
        first = asyncio.ensure_future(ask(case.made))
        await case.issuer.asked(2)
        second = asyncio.ensure_future(ask(case.made))
        await asyncio.sleep(0)
        case.issuer.gate.set()
        assert [each.status for each in await asyncio.gather(first, second)] == [200, 200]
    assert [each.rpartition(b"\r\n")[2] for each in case.issuer.requests] == [
        b'{"password": "old"}',
        b'{"password": "new"}',
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "/auth"}, "not the URL of a token server"),
        ({"url": "http://x/\u00e4"}, "not the URL of a token server"),
        ({"url": "http://x/\x7f"}, "not the URL of a token server"),
        ({"token": "data."}, "login.token"),
        ({"json": None}, "login.json"),
        ({"header": "X Y"}, "login.header"),
        ({"header": "Content-Length"}, "this header is reserved"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "this header is reserved"),
        ({"typo": "x"}, "login.typo"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        login(**options)

"""Tokens that a login or a token server of OAuth 2.0 issues."""

import asyncio
import gc
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from idv_upstream.options import UpstreamOptions
from support.fakes.clock_and_backends import LoopClock, Ticker
from support.http.scripted_server import Said, Scripted, header, http, serving
from support.http.upstream_transport import GOOD, POST, TIMEOUT, ask, failure_of, opened
from tornado_idv import Broken, LookupFailed, Unavailable
from tornado_idv.files import FileSecret

pytestmark = pytest.mark.slow

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
DATE = f"Date: {format_datetime(NOON, usegmt=True)}"


def later(**time: float) -> datetime:
    return NOON + timedelta(**time)


def jwt(**claims: Any) -> str:
    parts = json.dumps({"alg": "HS256"}), json.dumps(claims), "signature"
    return ".".join(urlsafe_b64encode(each.encode()).decode().rstrip("=") for each in parts)


def logged_in(token: Any = "t1", status: int = 200, **members: Any) -> bytes:
    return http(status, json.dumps({"data": {"token": token, **members}}).encode(), DATE)


def token(text: str = "t1", **members: Any) -> bytes:
    answer = {"access_token": text, "token_type": "Bearer", "expires_in": 3600, **members}
    kept = {name: value for name, value in answer.items() if value is not None}
    return http(200, json.dumps(kept).encode())


class Issued(NamedTuple):
    """An upstream, its token server, and a transport that uses both."""

    directory: Scripted
    issuer: Scripted
    made: Any
    timer: Ticker

    def shown(self, name: str = "Authorization") -> list[str | None]:
        return [header(request, name) for request in self.directory.requests]


@asynccontextmanager
async def behind_issuer(
    auth: Callable[[str], dict[str, Any]], tokens: Sequence[Said | bytes], answers: Sequence[bytes]
) -> AsyncIterator[Issued]:
    """Serve these responses of both; ``auth`` takes the address of the token server."""
    timer = Ticker()
    async with serving(*answers) as directory, serving(*tokens) as issuer:
        options = {"name": "crm", "kind": "upstream", "base_url": directory.address}
        given = UpstreamOptions.model_validate({**options, "auth": auth(issuer.address)}).auth
        async with opened(directory.address, auth=given, timer=timer, timeout=TIMEOUT / 2) as made:
            yield Issued(directory, issuer, made, timer)


def issued(
    *tokens: Said | bytes, answers: Sequence[bytes] = (GOOD,), **options: Any
) -> AbstractAsyncContextManager[Issued]:
    given = {"kind": "oauth2", "client_id": "us", "client_secret": "s3", **options}
    return behind_issuer(
        lambda issuer: {"token_url": f"{issuer}/oauth2/token?v=2", **given}, tokens, answers
    )


def behind_login(
    *logins: Said | bytes, answers: Sequence[bytes] = (GOOD,), **options: Any
) -> AbstractAsyncContextManager[Issued]:
    body = {"email": "idv", "password": "canary"}
    given = {"json": body, "token": "data.token", **options}
    return behind_issuer(lambda url: {"login": {"url": f"{url}/auth", **given}}, logins, answers)


def form_of(request: bytes) -> str:
    return request.partition(b"\r\n\r\n")[2].decode()


# Of a login


async def test_login_is_sent_as_it_is_configured() -> None:
    headers = {"X-App": "app", "content-type": "application/json; v=2"}
    options: dict[str, Any] = {"headers": headers, "header": "X-Parse-Session-Token"}
    async with behind_login(logged_in(status=201), **options) as case:
        await asyncio.gather(*(ask(case.made, POST) for _ in range(9)))
        (request,) = case.issuer.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /auth HTTP/1.1\r\n")
    assert header(request, "Content-Type") == headers["content-type"]
    assert header(request, "X-App") == "app"
    assert json.loads(body) == {"email": "idv", "password": "canary"}
    assert case.shown("X-Parse-Session-Token") == ["t1"] * 9
    assert case.shown() == [None] * 9
    assert case.shown("Content-Type") == ["application/json"] * 9


def at(**time: float) -> int:
    return int(later(**time).timestamp())


EXPIRES = {"expires": "data.expires"}


@pytest.mark.parametrize(
    ("serve", "answer", "options", "renewed_after"),
    [
        (behind_login, logged_in(expires=3600), EXPIRES, 3570),
        (behind_login, logged_in(expires=20.0), EXPIRES, 10),
        (behind_login, logged_in(expires=later(minutes=30).timestamp()), EXPIRES, 1770),
        (behind_login, logged_in(expires=at(minutes=10) * 1000), EXPIRES, 570),
        (behind_login, logged_in(expires="2026-11-26T12:10:00Z"), EXPIRES, 570),
        (behind_login, logged_in(expires="2026-11-26 12:10:00"), EXPIRES, 570),
        (behind_login, logged_in(expires="2030-01-01T00:00:00Z"), EXPIRES, 3570),
        (behind_login, logged_in(jwt(exp=at(minutes=2)), expires=3600), EXPIRES, 90),
        (behind_login, logged_in(jwt(exp=at(minutes=15)), expires=900_000), EXPIRES, 870),
        (behind_login, logged_in(jwt(exp=10**400), expires=90), EXPIRES, 60),
        (behind_login, logged_in(jwt(exp=at(minutes=15), id="x")), {}, 870),
        (behind_login, logged_in(jwt(exp="soon")), {}, 270),
        (behind_login, logged_in("a.YWJj.c"), {}, 270),
        (behind_login, logged_in("r:a1b2c3"), {}, 270),
        (issued, token(expires_in="90"), {}, 60),
        (issued, token(expires_in=None), {}, 270),
        (issued, token(expires_in=86400), {}, 3570),
    ],
)
async def test_token_is_renewed_before_it_expires(
    serve: Callable[..., AbstractAsyncContextManager[Issued]],
    answer: bytes,
    options: dict[str, Any],
    renewed_after: float,
) -> None:
    """By the clock of the server, if it sends its time."""
    renewed = token("t2") if serve is issued else logged_in("t2", expires=60)
    async with serve(answer, renewed, **options) as case:
        await ask(case.made)
        case.timer.now += renewed_after - 0.1
        await ask(case.made)
        case.timer.now += 0.2
        await ask(case.made)
    first, second, third = case.shown()
    assert first == second != third == "Bearer t2"
    assert len(case.issuer.connections) == 2  # where no late response is taken for the next one


async def test_token_that_has_expired_is_still_masked() -> None:
    """The upstream may repeat the token that a lookup in flight has sent."""
    async with behind_login(logged_in(), headers={"X-App": "app"}, header="authorization") as case:
        await ask(case.made)
        assert case.shown() == ["Bearer t1"]
        case.timer.now += 300
        assert case.made.secrets() == {"t1", "canary", "idv", "app"}


FAILURES: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "no expiry": (logged_in(), EXPIRES, "expires (data.expires) gives null, not a time"),
    "a word": (logged_in(expires="soon"), EXPIRES, "expires (data.expires) gives text"),
    "not a number": (logged_in(expires="nan"), EXPIRES, "expires (data.expires) gives text"),
    "endless": (logged_in(expires="inf"), EXPIRES, "expires (data.expires) gives text"),
    "true": (logged_in(expires=True), EXPIRES, "expires (data.expires) gives true or false"),
    "expired": (logged_in(jwt(exp=at(minutes=-1))), {}, "the token has expired already; compare"),
}


@pytest.mark.parametrize(("answer", "options", "reason"), FAILURES.values(), ids=FAILURES)
async def test_token_without_a_valid_lifetime_is_broken(
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
        ([http(200, b"{}")], [5, 20, 80, 320, 1280, 3600, 3600]),
        ([BUSY], [5, 5, 5]),
        ([Said(b"no HTTP\r\n\r\n", "close")], [5, 5, 5]),
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
    async with behind_login(Said()) as case:
        waiting = asyncio.ensure_future(failure_of(case.made))
        await case.issuer.asked()
        LoopClock().forward(TIMEOUT / 2 + 1)
        failure = await waiting
    assert (type(failure), failure.reason) == (Unavailable, "login: timed out")


async def test_changed_password_is_tried_at_once_as_a_first_one(tmp_path: Path) -> None:
    """Its file is read for each login."""
    path, ticker = tmp_path / "password", Ticker()
    path.write_text("old")
    async with behind_login(REFUSED, json={"password": FileSecret("old", path, ticker)}) as case:
        for password, sent in (("old", 1), ("old", 2), ("new", 3), ("new", 4)):
            path.write_text(password)
            ticker.now += 1
            await failure_of(case.made)
            assert len(case.issuer.requests) == sent
            assert form_of(case.issuer.requests[-1]) == f'{{"password": "{password}"}}'
            case.timer.now += 5
        case.issuer.say(logged_in())
        path.write_text("right")
        ticker.now += 1
        assert (await ask(case.made)).status == 200


# Of OAuth 2.0


IN_A_HEADER = "grant_type=client_credentials"
IN_THE_FORM = (
    f"{IN_A_HEADER}&scope=read+all&audience=https%3A%2F%2Fa%2F&client_id=us&client_secret=s3"
)
REQUESTS: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "header": ({}, "us:s3", IN_A_HEADER),
    # Both are encoded before they are joined. A colon in either does not move the boundary.
    "colons": ({"client_id": "a:b c", "client_secret": "ü:/"}, "a%3Ab+c:%C3%BC%3A%2F", IN_A_HEADER),
    "form": ({"style": "form", "scope": "read all", "audience": "https://a/"}, None, IN_THE_FORM),
}


@pytest.mark.parametrize(("options", "basic", "form"), REQUESTS.values(), ids=REQUESTS)
async def test_token_is_fetched_once_and_reused(
    options: dict[str, Any], basic: str | None, form: str
) -> None:
    """By client credentials (RFC 6749, section 4.4), in a header or the form."""
    async with issued(token("abc"), **options) as case:
        for _ in range(3):
            await ask(case.made)
    assert case.shown() == ["Bearer abc"] * 3
    (request,) = case.issuer.requests
    assert request.startswith(b"POST /oauth2/token?v=2 HTTP/1.1\r\n")
    assert header(request, "Content-Type") == "application/x-www-form-urlencoded"
    sent = None if basic is None else f"Basic {b64encode(basic.encode()).decode()}"
    assert header(request, "Authorization") == sent
    assert form_of(request) == form


async def test_token_that_has_expired_already_serves_the_requests_that_wait_for_it() -> None:
    async with issued(token("t1", expires_in=-5), token("t2")) as case:
        await asyncio.gather(*(ask(case.made) for _ in range(20)))
        await ask(case.made)
    assert case.shown() == ["Bearer t1"] * 20 + ["Bearer t2"]


async def test_lifetime_of_a_token_begins_with_its_request() -> None:
    """The token server may have started to count at any time since."""
    async with issued(token("t1", expires_in=90), token("t2")) as case:
        case.issuer.gate.clear()
        first = asyncio.ensure_future(ask(case.made))
        await case.issuer.asked()
        case.timer.now += 10
        case.issuer.gate.set()
        await first
        case.timer.now += 49.9
        await ask(case.made)
        case.timer.now += 0.1
        await ask(case.made)
    assert case.shown() == ["Bearer t1", "Bearer t1", "Bearer t2"]


async def test_200_concurrent_requests_fetch_one_token() -> None:
    """All are sent but those that were cancelled, the one that started the fetch among them."""
    async with issued(token()) as case:
        case.issuer.gate.clear()
        callers = [asyncio.ensure_future(ask(case.made)) for _ in range(200)]
        await case.issuer.asked()
        for caller in callers[:10]:
            caller.cancel()
        case.issuer.gate.set()
        await asyncio.gather(*callers[10:])
    assert len(case.issuer.requests) == 1
    assert case.shown() == ["Bearer t1"] * 190


@pytest.mark.parametrize("first", [token(), http(500)], ids=["issued", "failed"])
async def test_fetch_of_a_token_goes_on_though_its_request_was_cancelled(
    first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The next request uses its result; a failure is not logged as never retrieved."""
    async with issued(first, token()) as case:
        case.issuer.gate.clear()
        caller = asyncio.ensure_future(ask(case.made))
        await case.issuer.asked()
        caller.cancel()
        await asyncio.wait([caller])
        fetching = case.made._tokens._fetching  # noqa: SLF001 - a login that no lookup waits for
        case.issuer.gate.set()
        await asyncio.wait([fetching], timeout=5)
        gc.collect()
        assert caplog.messages == []
        case.timer.now += 5 * (first != token())
        assert (await ask(case.made)).status == 200
    assert len(case.issuer.requests) == 1 + (first != token())


@pytest.mark.parametrize("status", [401, 403, 422])
async def test_rejected_token_is_replaced_once(status: int) -> None:
    """Even if the request is not repeatable: a rejected request had no effect."""
    answers = (GOOD, http(status), GOOD)
    async with issued(token("t1"), token("t2"), answers=answers) as case:
        await ask(case.made)
        assert (await ask(case.made, POST)).status == 200
    assert case.shown() == ["Bearer t1", "Bearer t1", "Bearer t2"]


async def test_upstream_that_rejects_every_token_does_not_cost_a_token_per_request() -> None:
    """The response is the rejection; after 5 s a new token is tried."""
    async with issued(token("t"), answers=(http(422),)) as case:
        for _ in range(5):
            assert (await ask(case.made)).status == 422
        assert (len(case.issuer.requests), len(case.directory.requests)) == (2, 6)
        case.timer.now += 5
        assert (await ask(case.made)).status == 422
    assert (len(case.issuer.requests), len(case.directory.requests)) == (3, 8)


async def test_concurrent_rejections_fetch_one_token() -> None:
    refusals = (GOOD, *(http(401),) * 20, GOOD)
    async with issued(token("t1"), token("t2"), token("t3"), answers=refusals) as case:
        await ask(case.made)
        case.directory.gate.clear()
        callers = [asyncio.ensure_future(ask(case.made)) for _ in range(20)]
        await case.directory.asked(21)
        case.directory.gate.set()
        replies = await asyncio.gather(*callers)
    assert {reply.status for reply in replies} == {200}
    assert len(case.issuer.requests) == 2


async def test_late_rejection_of_the_old_token_uses_the_new_one() -> None:
    async with issued(token("t1"), token("t2"), token("t3")) as case:
        await ask(case.made)
        case.directory.say(Said(), http(401), GOOD)
        late = asyncio.ensure_future(ask(case.made))
        await case.directory.asked(2)
        await ask(case.made)
        case.directory.writers[0].write(http(401))
        assert (await late).status == 200
    assert case.shown()[1:] == ["Bearer t1", "Bearer t1", "Bearer t2", "Bearer t2"]


NO_TOKEN = (
    "token server: token ((!token_type || lower(token_type) == 'bearer') && access_token) gives {},"
    " not a token"
)
TOKENLESS: dict[str, tuple[Said | bytes, type[LookupFailed], str]] = {
    "302": (http(302), Broken, "token server: unexpected status 302"),
    "403": (http(403), Broken, "token server: the credentials are refused (status 403)"),
    "400": (http(400), Broken, "token server: the credentials are refused (status 400)"),
    "408": (http(408), Unavailable, "token server: temporarily unavailable (status 408)"),
    "429": (http(429), Unavailable, "token server: temporarily unavailable (status 429)"),
    "cut": (Said(token()[:-1], "close"), Unavailable, "token server: the response was cut"),
    "HTML": (http(200, b"<html>canary"), Broken, "token server: a response that is not valid JSON"),
    "no token": (http(200, b"{}"), Broken, NO_TOKEN.format("null")),
    "token with a newline": (token("canary\r\nX: canary"), Broken, NO_TOKEN.format("text")),
    "of another type": (token(token_type="mac"), Broken, NO_TOKEN.format("true or false")),
}


@pytest.mark.parametrize(("answer", "kind", "reported"), TOKENLESS.values(), ids=TOKENLESS.keys())
async def test_no_request_is_sent_without_a_token(
    answer: Said | bytes, kind: type[LookupFailed], reported: str
) -> None:
    """Each lookup has its own error; 5 s later the token server is tried again."""
    async with issued(answer) as case:
        failures = await asyncio.gather(*(failure_of(case.made) for _ in range(3)))
        case.timer.now += 4.9
        failures.append(await failure_of(case.made))
        assert len(case.issuer.requests) == 1
        case.timer.now += 0.1
        failures.append(await failure_of(case.made))
        case.issuer.say(token())
        case.timer.now += 5
        assert (await ask(case.made)).status == 200
    assert len(case.directory.requests) == 1
    assert len({id(failure) for failure in failures}) == 5
    for failure in failures:
        assert isinstance(failure, kind)
        assert failure.reason.startswith(reported)


@pytest.mark.parametrize(("asked", "granted"), [("30", 30), ("900", 60), ("1", 5)])
async def test_retry_after_of_the_token_server_is_respected(asked: str, granted: float) -> None:
    refusal = http(429, b"", f"Retry-After: {asked}")
    async with issued(refusal, token()) as case:
        assert (await failure_of(case.made)).retry_after == granted
        case.timer.now += granted - 0.1
        assert (await failure_of(case.made)).retry_after == 1
        assert len(case.issuer.requests) == 1
        case.timer.now += 0.1
        assert (await ask(case.made)).status == 200


async def test_closing_cancels_the_fetch_of_a_token() -> None:
    async with issued(token()) as case:
        case.issuer.gate.clear()
        caller = asyncio.ensure_future(ask(case.made))
        await case.issuer.asked()
        caller.cancel()
        await case.made.close()
        assert case.made._tokens._fetching.cancelled()  # noqa: SLF001 - a login that no lookup waits for

"""Credentials of requests, and that they are never leaked."""

from __future__ import annotations

import asyncio
import gc
import json
import traceback
from base64 import b64encode
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from idv_upstream.request.template import Request
from idv_upstream.transport.credentials import Credential
from support.http.scripted_server import Said, header, http, serving
from support.http.upstream_transport import (
    GET,
    POST,
    Issued,
    ask,
    asked,
    behind_issuer,
    failure_of,
    given_up,
    opened,
    traceback_of,
)
from support.processes.loggers import log_everything
from tornado_idv import Broken, LookupFailed, Unavailable

pytestmark = pytest.mark.slow

GOOD = http(200, b"{}")


class Options(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    auth: Credential


def credential(**members: Any) -> Credential:
    return Options.model_validate({"auth": members}).auth


class Changing(SecretStr):
    """A secret whose file is replaced."""

    def now(self, text: str) -> None:
        self._secret_value = text


def problems(**members: Any) -> list[tuple[Any, str]]:
    with pytest.raises(ValidationError) as caught:
        credential(**members)
    assert "canary" not in str(caught.value)
    return [(each["loc"][1:], each["msg"]) for each in caught.value.errors()]


# Requests

BASIC = b64encode("us:pä:ss".encode()).decode()
CARRIED: dict[str, tuple[dict[str, Any], str, str | None, str]] = {
    "none": ({"kind": "none"}, "Authorization", None, ""),
    "bearer": ({"kind": "bearer", "token": "a|b.c=="}, "Authorization", "Bearer a|b.c==", ""),
    "basic": (
        {"kind": "basic", "username": "us", "password": "pä:ss"},
        "Authorization",
        f"Basic {BASIC}",
        "",
    ),
    "key in a header": ({"kind": "api_key", "header": "X-Key", "value": "a b"}, "X-Key", "a b", ""),
    "key as Authorization": (
        {"kind": "api_key", "header": "authorization", "value": "Token a"},
        "Authorization",
        "Token a",
        "",
    ),
    "key in the query": (
        {"kind": "api_key", "query": "key[]", "value": "a&b=c#/+?"},
        "Authorization",
        None,
        "key%5B%5D=a%26b%3Dc%23%2F%2B%3F",
    ),
}


@pytest.mark.parametrize(("auth", "name", "value", "query"), CARRIED.values(), ids=CARRIED.keys())
async def test_request_carries_the_credential(
    auth: dict[str, Any], name: str, value: str | None, query: str
) -> None:
    """In its position only, whether the URL has a query or not."""
    async with asked(GOOD, auth=credential(**auth)) as (upstream, made):
        await ask(made, POST)
        await ask(made, GET)
    assert [header(each, name) for each in upstream.requests] == [value, value]
    more = (f"?{query}", f"&{query}") if query else ("", "")
    assert upstream.targets == [POST.url + more[0], GET.url + more[1]]


@pytest.mark.parametrize("written", ["Authorization", "authorization"])
async def test_credential_overrides_a_header_of_the_request(written: str) -> None:
    """There is one `Authorization`, in whatever case it is written."""
    request = Request("GET", "/", {written: "Bearer other"}, None, repeatable=True)
    async with asked(GOOD, auth=credential(kind="bearer", token="ours")) as (upstream, made):
        await ask(made, request)
    assert header(upstream.requests[0], "Authorization") == "Bearer ours"


HOLDERS = ("bearer", "basic", "api_key", "oauth2", "login")


def holder(kind: str, secret: Any, url: str = "http://127.0.0.1:1/token") -> Credential:
    members: dict[str, dict[str, Any]] = {
        "bearer": {"token": secret},
        "basic": {"username": "us", "password": secret},
        "api_key": {"header": "X-Key", "value": secret},
        "oauth2": {"token_url": url, "client_id": "us", "client_secret": secret},
        "login": {"login": {"url": url, "json": {"a": secret}, "token": "t"}},
    }
    return credential(kind=kind, **members[kind])


@pytest.mark.parametrize("kind", ["bearer", "basic", "api_key"])
async def test_secret_is_read_for_each_request(kind: str) -> None:
    """Its file may have changed, and may hold something that cannot be sent."""
    secret = Changing("first")
    async with asked(GOOD, auth=holder(kind, secret)) as (upstream, made):
        await ask(made)
        secret.now("second")
        await ask(made)
        secret.now("canary\r\nX-Evil: 1")
        failure = await failure_of(made)
    assert isinstance(failure, Broken)
    assert "canary" not in failure.reason
    name = "X-Key" if kind == "api_key" else "Authorization"
    first, second = (header(each, name) for each in upstream.requests)
    assert first != second


@pytest.mark.parametrize("kind", HOLDERS)
def test_secret_is_in_no_repr(kind: str) -> None:
    """Options end up in logs and tracebacks."""
    built = holder(kind, "canary")
    assert "canary" not in f"{built!r} {built} {built.model_dump()} {built.model_dump_json()}"


WRONG = [
    ({"kind": "bearer", "token": ""}, "bearer.token", "not a bearer token"),
    ({"kind": "bearer", "token": "canary canary"}, "bearer.token", "write 1 to 4096 visible ASCII"),
    ({"kind": "bearer", "token": "canary\n"}, "bearer.token", "not a bearer token"),
    ({"kind": "bearer", "token": "çanary"}, "bearer.token", "not a bearer token"),
    ({"kind": "bearer", "token": "canary" * 700}, "bearer.token", "not a bearer token"),
    ({"kind": "basic", "username": "a:b", "password": "canary"}, "basic.username", ""),
    ({"kind": "basic", "username": "a", "password": "canary\n"}, "basic.password", "on one line"),
    ({"kind": "api_key", "header": "K", "value": "canary\n"}, "api_key.value", "not a key; write"),
    (
        {"kind": "api_key", "header": "K", "query": "k", "value": "canary"},
        "api_key.query",
        "either",
    ),
    ({"kind": "api_key", "value": "canary"}, "api_key.query", "either header or query"),
    ({"kind": "api_key", "header": "X Key", "value": "canary"}, "api_key.header", ""),
    *(
        (
            {"kind": "api_key", "header": name, "value": "canary"},
            "api_key.header",
            "this header is reserved",
        )
        for name in ("Host", "content-length", "Transfer-Encoding", "Proxy-X")
    ),
]


@pytest.mark.parametrize(("members", "place", "reported"), WRONG)
def test_credential_that_cannot_be_sent_is_rejected(
    members: dict[str, Any], place: str, reported: str
) -> None:
    ((where, message),) = problems(**members)
    assert ".".join(where) == place
    assert reported in message


@pytest.mark.parametrize(
    "url",
    [
        "ftp://login.example/token",
        "https://user:canary@login.example/token",
        "https://login.example/token#canary",
        "https://login.example/a b",
        "https://login.example\n",
    ],
)
def test_token_url_without_scheme_and_host_is_rejected(url: str) -> None:
    members = {"kind": "oauth2", "client_id": "us", "client_secret": "s"}
    ((where, message),) = problems(token_url=url, **members)
    assert where == ("oauth2", "token_url")
    assert "not the URL of a token server; write" in message


# OAuth 2.0


def token(text: str = "t1", **members: Any) -> bytes:
    answer = {"access_token": text, "token_type": "Bearer", "expires_in": 3600, **members}
    kept = {name: value for name, value in answer.items() if value is not None}
    return http(200, json.dumps(kept).encode())


def issued(
    *tokens: Said | bytes, answers: Sequence[Said | bytes] = (GOOD,), **options: Any
) -> AbstractAsyncContextManager[Issued]:
    given = {"kind": "oauth2", "client_id": "us", "client_secret": "s3", **options}
    return behind_issuer(
        lambda issuer: credential(token_url=f"{issuer}/oauth2/token?v=2", **given),
        *tokens,
        answers=answers,
    )


def form_of(request: bytes) -> str:
    return request.partition(b"\r\n\r\n")[2].decode()


async def test_token_is_fetched_once_and_reused() -> None:
    """By client credentials (RFC 6749, section 4.4)."""
    async with issued(token("abc")) as case:
        for _ in range(3):
            await ask(case.made)
    assert case.shown() == ["Bearer abc"] * 3
    (request,) = case.issuer.requests
    assert request.startswith(b"POST /oauth2/token?v=2 HTTP/1.1\r\n")
    assert header(request, "Content-Type") == "application/x-www-form-urlencoded"
    assert header(request, "Authorization") == f"Basic {b64encode(b'us:s3').decode()}"
    assert form_of(request) == "grant_type=client_credentials"


async def test_client_credentials_may_be_sent_in_the_form() -> None:
    """For token servers that do not support the header."""
    async with issued(token(), style="form", scope="read all", audience="https://a/") as case:
        await ask(case.made)
    (request,) = case.issuer.requests
    assert header(request, "Authorization") is None
    assert form_of(request) == (
        "grant_type=client_credentials&scope=read+all&audience=https%3A%2F%2Fa%2F"
        "&client_id=us&client_secret=s3"
    )


async def test_client_id_and_secret_are_encoded_before_they_are_joined() -> None:
    """A colon in either does not move the boundary."""
    async with issued(token(), client_id="a:b c", client_secret="ü:/") as case:
        await ask(case.made)
    shown = b64encode(b"a%3Ab+c:%C3%BC%3A%2F").decode()
    assert header(case.issuer.requests[0], "Authorization") == f"Basic {shown}"


LIVES: dict[str, tuple[dict[str, Any], float]] = {
    "an hour": ({}, 3570),
    "as text": ({"expires_in": "90"}, 60),
    "unsaid": ({"expires_in": None}, 270),
    "a word": ({"expires_in": "soon"}, 270),
    "a day": ({"expires_in": 86400}, 3570),
    "for ever": ({"expires_in": 1e300}, 3570),
}


@pytest.mark.parametrize(("members", "seconds"), LIVES.values(), ids=LIVES.keys())
async def test_token_is_cached_until_30_s_before_it_expires(
    members: dict[str, Any], seconds: float
) -> None:
    """Without `expires_in` it is cached for five minutes."""
    async with issued(token("t1", **members), token("t2")) as case:
        await ask(case.made)
        case.timer.now += seconds - 0.1
        await ask(case.made)
        case.timer.now += 0.1
        await ask(case.made)
    assert case.shown() == ["Bearer t1", "Bearer t1", "Bearer t2"]


async def test_short_lived_token_is_cached_for_half_of_its_lifetime() -> None:
    """One that has expired already serves the requests that wait for it."""
    tokens = token("t1", expires_in=30), token("t2", expires_in=-5), token("t3")
    async with issued(*tokens) as case:
        await asyncio.gather(*(ask(case.made) for _ in range(20)))
        case.timer.now += 14.9
        await ask(case.made)
        case.timer.now += 0.1
        await ask(case.made)
        await ask(case.made)
    assert case.shown() == ["Bearer t1"] * 21 + ["Bearer t2", "Bearer t3"]


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
        assert case.made._tokens is not None
        fetching = case.made._tokens._fetching
        assert fetching is not None
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


@pytest.mark.parametrize("status", [401, 422])
async def test_upstream_that_rejects_every_token_does_not_cost_a_token_per_request(
    status: int,
) -> None:
    """The response is the rejection; after 5 s a new token is tried."""
    async with issued(token("t"), answers=(http(status),)) as case:
        for _ in range(5):
            assert (await ask(case.made)).status == status
        assert (len(case.issuer.requests), len(case.directory.requests)) == (2, 6)
        case.timer.now += 5
        assert (await ask(case.made)).status == status
    assert (len(case.issuer.requests), len(case.directory.requests)) == (3, 8)


async def test_concurrent_rejections_fetch_one_token() -> None:
    """A late rejection of the old token uses the new one."""
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


REFUSED = "token server: the credentials are refused (status {})"
NOT_JSON = "token server: a response that is not valid JSON"
NO_TOKEN = (
    "token server: token ((!token_type || lower(token_type) == 'bearer') && access_token) gives {},"
    " not a token"
)
TOKENLESS: dict[str, tuple[Said | bytes, type[LookupFailed], str]] = {
    "400": (http(400, b'{"error":"invalid_client"}'), Broken, REFUSED.format(400)),
    "401": (http(401), Broken, REFUSED.format(401)),
    "404": (http(404), Broken, "token server: unexpected status 404"),
    "302": (http(302, b"", "Location: /"), Broken, "token server: unexpected status 302"),
    "408": (http(408), Unavailable, "token server: temporarily unavailable (status 408)"),
    "429": (http(429), Unavailable, "token server: temporarily unavailable (status 429)"),
    "500": (http(500), Unavailable, "token server: temporarily unavailable (status 500)"),
    "cut": (Said(token()[:-1], "close"), Unavailable, "token server: the response was cut"),
    "HTML": (http(200, b"<html>canary"), Broken, NOT_JSON),
    "no token": (http(200, b'{"token_type":"bearer"}'), Broken, NO_TOKEN.format("null")),
    "token a number": (token(access_token=5), Broken, NO_TOKEN.format("a number")),
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
        case.issuer.say(token())
        case.timer.now += 0.1
        assert (await ask(case.made)).status == 200
    assert len(case.directory.requests) == 1
    assert len({id(failure) for failure in failures}) == 4
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
        assert case.made._tokens is not None
        assert case.made._tokens._fetching is not None
        assert case.made._tokens._fetching.cancelled()


# What is leaked


@pytest.mark.parametrize("kind", HOLDERS)
@pytest.mark.parametrize(
    "answer",
    [Said(then="close"), Said(), Said(http(401, b"", "WWW-Authenticate: Bearer"))],
    ids=["closed", "frozen", "401"],
)
async def test_no_failure_leaks_a_secret(
    kind: str, answer: Said, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in a log record of any library at any level, nor in an error or its traceback."""
    log_everything(caplog)
    async with serving(answer) as upstream:
        auth = holder(kind, "canary", upstream.address)
        async with opened(upstream.address, auth=auth) as made:
            if answer == Said():
                reported = traceback.format_exception(await given_up(upstream, made))
            else:
                reported = await traceback_of(made)
    secrets = ["canary", b64encode(b"us:canary").decode()]
    assert any(secret in upstream.requests[0].decode() for secret in secrets)
    assert [secret for secret in secrets if secret in "".join([*reported, caplog.text])] == []

"""Credentials of requests, and that they are never leaked."""

import traceback
from base64 import b64encode
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from idv_upstream.transport.credentials import Credential
from support.http.scripted_server import Said, header, serving
from support.http.upstream_transport import GET, GOOD, POST, ask, asked, failure_of, opened
from support.processes.loggers import log_everything
from tornado_idv import Broken

pytestmark = pytest.mark.slow


class Options(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    auth: Credential


def credential(**members: Any) -> Credential:
    return Options.model_validate({"auth": members}).auth


class Changing(SecretStr):
    def now(self, text: str) -> None:
        self._secret_value = text


BASIC = "Basic " + b64encode("us:pä:ss".encode()).decode()
FIELD = "Authorization"
CARRIED: dict[str, tuple[dict[str, Any], str, str | None, str]] = {
    "none": ({"kind": "none"}, FIELD, None, ""),
    "bearer": ({"kind": "bearer", "token": "a|b.c=="}, FIELD, "Bearer a|b.c==", ""),
    "basic": ({"kind": "basic", "username": "us", "password": "pä:ss"}, FIELD, BASIC, ""),
    "header": ({"kind": "api_key", "header": FIELD, "value": "Token a"}, FIELD, "Token a", ""),
    "key in the query": (
        {"kind": "api_key", "query": "key[]", "value": "a&b=c#/+?"},
        FIELD,
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
    assert header(upstream.requests[0], "Content-Type") == POST.headers["Content-Type"]
    more = (f"?{query}", f"&{query}") if query else ("", "")
    assert upstream.targets == [POST.url + more[0], GET.url + more[1]]


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
        assert made.secrets() == {"canary\r\nX-Evil: 1"}
    assert isinstance(failure, Broken)
    assert "canary" not in failure.reason
    name = "X-Key" if kind == "api_key" else "Authorization"
    first, second = (header(each, name) for each in upstream.requests)
    assert first != second


TOKEN, BASIC_USER = {"kind": "bearer"}, {"kind": "basic", "password": "canary"}
KEY, OAUTH = {"kind": "api_key", "value": "canary"}, {"kind": "oauth2", "client_secret": "canary"}
RESERVED = "this header is reserved"
NO_URL = "not the URL of a token server; write"


def login(**changed: Any) -> dict[str, Any]:
    given = {"url": "http://x", "json": {"p": "canary"}, "token": "t"}
    return {"kind": "login", "login": {**given, **changed}}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({**TOKEN, "token": ""}, "bearer.token", "write 1 to 4096 visible ASCII"),
    ({**TOKEN, "token": "canary canary"}, "bearer.token", "not a bearer token"),
    ({**TOKEN, "token": "canary" * 700}, "bearer.token", "not a bearer token"),
    ({**BASIC_USER, "username": "a:b"}, "basic.username", ""),
    ({**BASIC_USER, "username": "a\x7f"}, "basic.username", ""),
    ({**BASIC_USER, "username": "a", "password": "canary\x7f"}, "basic.password", "on one line"),
    ({**BASIC_USER, "username": "a", "password": "canary\n"}, "basic.password", "on one line"),
    ({**KEY, "header": "K", "value": "canary\n"}, "api_key.value", "not a key; write"),
    ({**KEY, "header": "K", "value": "canary "}, "api_key.value", "not a key; write"),
    ({**KEY, "header": "K", "query": "k"}, "api_key.query", "either header or query"),
    (KEY, "api_key.query", "either header or query"),
    ({**KEY, "header": "X Key"}, "api_key.header", ""),
    ({**KEY, "header": "content-length"}, "api_key.header", RESERVED),
    *(
        ({**OAUTH, "client_id": "us", "token_url": url}, "oauth2.token_url", NO_URL)
        for url in (
            "https://user:canary@login.example/token",
            "https://login.example/a b",
            "https://login.example/\u00e4",
            "https://login.example/\x7f",
        )
    ),
    (login(url="/auth"), "login.login.url", NO_URL),
    (login(token="a."), "login.login.token", "wrong at column 3"),
    (login(header="Host"), "login.login.header", RESERVED),
    (login(headers={"Host": "x"}), "login.login.headers.Host.[key]", RESERVED),
]


@pytest.mark.parametrize(("members", "place", "reported"), WRONG)
def test_credential_that_cannot_be_sent_is_rejected(
    members: dict[str, Any], place: str, reported: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        credential(**members)
    (problem,) = caught.value.errors()
    assert ".".join(map(str, problem["loc"][1:])) == place
    assert reported in problem["msg"]
    assert "canary" not in str(caught.value)


# What is leaked


@pytest.mark.parametrize("kind", HOLDERS)
async def test_no_failure_leaks_a_secret(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a log record of any library at any level, nor an error, nor the options."""
    log_everything(caplog)
    async with serving(Said(then="close")) as upstream:
        auth = holder(kind, "canary", upstream.address)
        async with opened(upstream.address, auth=auth) as made:
            reported = traceback.format_exception(await failure_of(made))
    secrets = ["canary", b64encode(b"us:canary").decode()]
    assert any(secret in upstream.requests[0].decode() for secret in secrets)
    reported += [caplog.text, f"{auth!r} {auth} {auth.model_dump()!r}", auth.model_dump_json()]
    assert [secret for secret in secrets if secret in "".join(reported)] == []

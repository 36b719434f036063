"""What goes wrong inside, and how it is told outside and in the log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from serving import KEY
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.ioloop import IOLoop
from tornado.testing import bind_unused_port
from tornado.web import HTTPError

from tornado_idv.errors import Broken, InvalidFormat, InvalidKey, Unavailable
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing
from tornado_idv.keys.token import digest
from tornado_idv.model import Answer, Query
from tornado_idv.server.listener import HttpLimits, Listener
from tornado_idv.web.app import make_app
from tornado_idv.web.refusals import Refusal, Refused, refusal_for

STATUS = {
    "bad_request": 400,
    "token_invalid_or_expired": 401,
    "insufficient_scope": 403,
    "not_found": 404,
    "no_such_route": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "request_timeout": 408,
    "body_too_large": 413,
    "uri_too_long": 414,
    "unsupported_media_type": 415,
    "expectation_failed": 417,
    "invalid_format": 422,
    "headers_too_large": 431,
    "internal": 500,
    "backend_unavailable": 503,
    "overloaded": 503,
}
Ask = Callable[..., Any]


class Failing:
    """A directory whose lookups end with an error."""

    def __init__(self) -> None:
        self.error: BaseException = Unavailable("locked", backend="users")

    def get_cached(self, query: Query) -> None:
        return None

    def start(self, query: Query) -> asyncio.Future[Answer]:
        lookup: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        lookup.set_exception(self.error)
        return lookup


@pytest.fixture
def directory() -> Failing:
    return Failing()


@pytest.fixture
def listener(io_loop: IOLoop, directory: Failing) -> Iterator[Listener]:
    """Serves the application on a real socket."""

    async def listening() -> Listener:
        return Listener(app, HttpLimits())

    identifiers = Identifiers((ProfileSite.parse("https://profiles.example"),))
    keys = KeyRing([ApiKey("caller", digest(KEY))])
    app = make_app(directory, identifiers, keys, "/base")  # type: ignore[arg-type]
    listener = io_loop.run_sync(listening)
    yield listener
    listener.close()


@pytest.fixture
def ask(io_loop: IOLoop, listener: Listener) -> Iterator[Ask]:
    """Asks the application, with a good key."""
    sock, port = bind_unused_port()
    io_loop.run_sync(partial(listener.listen, [sock]))

    async def connected() -> AsyncHTTPClient:
        return AsyncHTTPClient(force_instance=True)  # it looks for the loop it runs on

    client = io_loop.run_sync(connected)

    async def post(body: str = '{"input": "@tweety"}') -> HTTPResponse:
        url = f"http://127.0.0.1:{port}/base/api/v1/identify/url"
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        return await client.fetch(url, method="POST", body=body, headers=headers, raise_error=False)

    yield post
    client.close()


@pytest.mark.parametrize("refusal", Refusal, ids=lambda refusal: refusal.name)
def test_every_refusal_is_a_record_with_a_status_of_its_own(refusal: Refusal) -> None:
    record = json.loads(refusal.body)
    assert list(record) == ["status", "code", "message"]
    assert record["status"] == "error"
    assert refusal.status == STATUS[record["code"]]
    assert record["message"]


def test_every_code_is_some_refusal_s() -> None:
    assert {refusal.code for refusal in Refusal} == set(STATUS)


def test_only_some_refusals_have_headers() -> None:
    headers = {refusal: refusal.headers for refusal in Refusal if refusal.headers}
    assert headers == {
        Refusal.TOKEN: {"WWW-Authenticate": "Bearer"},
        Refusal.UNAVAILABLE: {"Retry-After": "1"},
        Refusal.OVERLOADED: {"Retry-After": "1"},
    }


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (Refused(Refusal.SCOPE), Refusal.SCOPE),
        (InvalidFormat("x"), Refusal.FORMAT),
        (InvalidKey("x"), Refusal.TOKEN),
        (Unavailable("x"), Refusal.UNAVAILABLE),
        (Broken("x"), Refusal.UNAVAILABLE),
        (HTTPError(404), Refusal.INTERNAL),
        (ValueError("x"), Refusal.INTERNAL),
    ],
    ids=repr,
)
def test_every_error_has_its_refusal(error: BaseException, refusal: Refusal) -> None:
    """Nothing that went wrong on our side is told as 401 or 404."""
    assert refusal_for(error) is refusal


@pytest.mark.parametrize("kind", [Unavailable, Broken])
async def test_a_lookup_that_could_not_tell_is_503(
    ask: Ask, directory: Failing, kind: type[Broken]
) -> None:
    directory.error = kind("at our side", backend="users")
    response = await ask()
    assert (response.code, response.body) == (503, Refusal.UNAVAILABLE.body)
    assert response.headers["Retry-After"] == "1"
    assert response.headers["Cache-Control"] == "no-store"


async def test_an_unforeseen_error_is_500_and_its_text_is_told_nowhere(
    ask: Ask, directory: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the code that was passed and the kind of the error."""
    directory.error = ValueError("no row for tweety")
    response = await ask()
    assert (response.code, response.body) == (500, Refusal.INTERNAL.body)
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    told = record.getMessage()
    assert f"request {response.headers['X-Request-ID']} failed unforeseen" in told
    assert told.endswith("ValueError")
    assert "in _end" in told
    assert "tweety" not in caplog.text


async def test_what_was_foreseen_is_no_error_in_the_log(
    ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    await ask()
    await ask("{}")
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_request_that_failed_holds_no_drain_up(
    ask: Ask, directory: Failing, listener: Listener
) -> None:
    directory.error = RuntimeError()
    assert (await ask()).code == 500
    await asyncio.wait_for(listener.drain(), 5)

"""Failures inside, and what they are outside and in the log."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.ioloop import IOLoop
from tornado.testing import bind_unused_port
from tornado.web import Application, HTTPError

from support.processes.service import KEY
from tornado_idv.errors import Broken, InvalidFormat, InvalidKey, LookupFailed, Unavailable
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.http.exchange import Exchange, Peer, ResponseSink
from tornado_idv.http.head import parse_head
from tornado_idv.http.server import HttpServer
from tornado_idv.http.serving import Serving
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing
from tornado_idv.keys.token import digest
from tornado_idv.model import Answer, Query
from tornado_idv.web.app import make_api, make_reject
from tornado_idv.web.errors import ApiError, ApiException, error_for
from tornado_idv.web.handler import ApiHandler
from tornado_idv.web.lookups import ApiContext

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
def server(io_loop: IOLoop, directory: Failing) -> Iterator[HttpServer]:
    async def build() -> HttpServer:
        return HttpServer(Serving(app, make_reject(None), HttpLimits()))

    identifiers = Identifiers((ProfileSite.parse("https://profiles.example"),))
    keys = KeyRing([ApiKey("caller", digest(KEY))])
    app = make_api(ApiContext(directory, identifiers, keys), "/base")  # type: ignore[arg-type]
    server = io_loop.run_sync(build)
    yield server
    server.close()


@pytest.fixture
def ask(io_loop: IOLoop, server: HttpServer) -> Iterator[Ask]:
    sock, port = bind_unused_port()
    io_loop.run_sync(partial(server.listen, [sock]))

    async def connected() -> AsyncHTTPClient:
        return AsyncHTTPClient(force_instance=True)  # it looks for the loop it runs on

    client = io_loop.run_sync(connected)

    async def post(body: str = '{"input": "@tweety"}') -> HTTPResponse:
        url = f"http://127.0.0.1:{port}/base/api/v1/identify/url"
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        return await client.fetch(url, method="POST", body=body, headers=headers, raise_error=False)

    yield post
    client.close()


@pytest.mark.parametrize("error", ApiError, ids=lambda error: error.name)
def test_every_error_is_a_record_with_its_status(error: ApiError) -> None:
    record = json.loads(error.body)
    assert list(record) == ["status", "code", "message"]
    assert record["status"] == "error"
    assert record["code"] == error.code
    assert record["message"]


def test_only_some_errors_have_header_fields() -> None:
    fields = {error: error.fields for error in ApiError if error.fields}
    assert fields == {
        ApiError.TOKEN: "Www-Authenticate: Bearer\r\n",
        ApiError.UNAVAILABLE: "Retry-After: 1\r\n",
        ApiError.BROKEN: "Retry-After: 1\r\n",
        ApiError.OVERLOADED: "Retry-After: 1\r\n",
    }


@pytest.mark.parametrize(
    ("exception", "error"),
    [
        (ApiException(ApiError.SCOPE), ApiError.SCOPE),
        (InvalidFormat("not_json"), ApiError.FORMAT),
        (InvalidKey("x"), ApiError.TOKEN),
        (Unavailable("x"), ApiError.UNAVAILABLE),
        (Broken("x"), ApiError.BROKEN),
        (HTTPError(404), ApiError.INTERNAL),
        (HTTPError(405), ApiError.METHOD),
        (ValueError("x"), ApiError.INTERNAL),
    ],
    ids=repr,
)
def test_every_exception_has_its_error(exception: BaseException, error: ApiError) -> None:
    """No failure of ours becomes 401 or 404."""
    assert error_for(exception) is error


@pytest.mark.parametrize(
    ("failure", "error", "seconds"),
    [
        (Unavailable("at our side", backend="users"), ApiError.UNAVAILABLE, "1"),
        (Unavailable("full", retry_after=0.0), ApiError.UNAVAILABLE, "1"),
        (Unavailable("asked to wait", retry_after=29.2), ApiError.UNAVAILABLE, "30"),
        (Broken("the credentials are refused", backend="users"), ApiError.BROKEN, "60"),
        (Broken("paused", retry_after=90.0).copy(), ApiError.BROKEN, "90"),
        (Unavailable("wait of a plugin", retry_after=math.inf), ApiError.UNAVAILABLE, "3600"),
        (Unavailable("wait of a plugin", retry_after=math.nan), ApiError.UNAVAILABLE, "1"),
    ],
    ids=repr,
)
async def test_a_failed_lookup_is_503_with_the_time_to_wait(
    ask: Ask, directory: Failing, failure: LookupFailed, error: ApiError, seconds: str
) -> None:
    """The text promises nothing where an operator has to act."""
    directory.error = failure
    response = await ask()
    assert (response.code, response.body) == (503, error.body)
    assert json.loads(response.body)["code"] == "backend_unavailable"
    assert ("try again" in json.loads(response.body)["message"]) is isinstance(failure, Unavailable)
    assert response.headers["Retry-After"] == seconds
    assert response.headers["Cache-Control"] == "no-store"


async def test_an_unhandled_exception_is_500_and_its_text_appears_nowhere(
    ask: Ask, directory: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the code that was passed and the kind of the error."""
    directory.error = ValueError("no row for tweety")
    response = await ask()
    assert (response.code, response.body) == (500, ApiError.INTERNAL.body)
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    message = record.getMessage()
    assert message.startswith("unhandled exception:\n")
    assert vars(record)["request_id"] == response.headers["X-Request-ID"]
    assert message.endswith("ValueError")
    assert "in result" in message
    assert "tweety" not in caplog.text


async def test_a_lookup_that_was_cancelled_is_500(ask: Ask, directory: Failing) -> None:
    """As when the service is aborted; without a response its client would wait."""
    directory.error = asyncio.CancelledError()
    response = await ask()
    assert (response.code, response.body) == (500, ApiError.INTERNAL.body)


async def test_an_expected_error_is_not_logged_as_an_error(
    ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    await ask()
    await ask("{}")
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_failed_request_does_not_delay_a_drain(
    ask: Ask, directory: Failing, server: HttpServer
) -> None:
    directory.error = RuntimeError()
    assert (await ask()).code == 500
    await asyncio.wait_for(server.drain(), 5)


class Recorder(ResponseSink):
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.completed = 0

    def send(self, data: bytes) -> asyncio.Future[None]:
        self.sent.append(data)
        return asyncio.get_running_loop().create_future()

    def on_response_complete(self, *, keep_alive: bool) -> None:
        self.completed += 1


class Waiting(ApiHandler):
    """Waits until its task is cancelled."""

    async def get(self) -> None:
        await asyncio.sleep(60)


async def test_a_request_whose_task_is_cancelled_is_500(directory: Failing) -> None:
    sink = Recorder()
    head = parse_head(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0)
    api = ApiContext(directory, Identifiers(()), KeyRing([]))  # type: ignore[arg-type]
    before = asyncio.all_tasks()
    app = Application([("/", Waiting, {"api": api})])
    Exchange(sink, head, Peer("127.0.0.1", "http")).dispatch(app, b"")
    await asyncio.sleep(0)
    (task,) = asyncio.all_tasks() - before
    task.cancel()
    await asyncio.wait([task])
    assert sink.sent[0].startswith(b"HTTP/1.1 500 ")
    assert sink.sent[0].endswith(ApiError.INTERNAL.body)


class FailingAfterResponse(ApiHandler):
    """Fails when its response is sent already."""

    def get(self) -> None:
        self.finish(b"{}")
        raise RuntimeError


async def test_a_failure_after_the_response_sends_no_second_one(
    directory: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Recorder()
    head = parse_head(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0)
    exchange = Exchange(sink, head, Peer("127.0.0.1", "http"))
    api = ApiContext(directory, Identifiers(()), KeyRing([]))  # type: ignore[arg-type]
    app = Application([("/", FailingAfterResponse, {"api": api})])
    exchange.dispatch(app, b"")
    await asyncio.sleep(0)
    assert (len(sink.sent), sink.completed) == (1, 1)
    assert "unhandled exception:" in caplog.text

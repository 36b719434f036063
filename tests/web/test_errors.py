"""Failures inside, and what they are outside and in the log."""

import asyncio
import json
import logging
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tornado.web import Application, HTTPError

from support.http.http_server import ignore
from support.http.in_process import IDENTIFIERS, FakeClient, Harness, ask_for
from support.http.scripted_server import http, serving
from support.processes.service import CONFIG, Client, serving_here
from tornado_idv.errors import Broken, InvalidFormat, InvalidKey, LookupFailed, Unavailable
from tornado_idv.keys.ring import KeyRing
from tornado_idv.web.errors import ApiError, ApiException, error_for
from tornado_idv.web.handler import ApiHandler
from tornado_idv.web.lookups import ApiContext, result_of_error

MakeHarness = Callable[..., Harness]
BREAKER = {"failures": 1, "open_for": "30s"}
_LOG = logging.getLogger("tornado_idv.web.lookups")


@pytest.fixture
def make_harness(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> Iterator[MakeHarness]:
    """An unhandled exception that is logged is no failure of the test."""
    _LOG.propagate = False
    _LOG.addHandler(caplog.handler)
    yield make_harness
    _LOG.removeHandler(caplog.handler)
    _LOG.propagate = True


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
def test_a_failed_lookup_is_503_with_the_time_to_wait(
    failure: LookupFailed, error: ApiError, seconds: str
) -> None:
    """The text promises nothing where an operator has to act."""
    result = result_of_error(failure)
    assert (result.status, result.body) == (503, error.body)
    assert result.fields == f"Retry-After: {seconds}\r\n"
    assert ("try again" in error.message) is isinstance(failure, Unavailable)


def ask_with_failing_lookups(harness: Harness, error: BaseException) -> FakeClient:
    """Send a request whose lookup ends with this error."""
    lookup = harness.loop.create_future()
    lookup.cancel() if isinstance(error, asyncio.CancelledError) else lookup.set_exception(error)
    setattr(harness.directory, "start", lambda _: lookup)  # noqa: B010 - of this one alone
    return harness.ask(ask_for("tweety"))


def test_an_unhandled_exception_is_500_and_its_text_appears_nowhere(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the code that was passed and the kind of the error. A drain does not wait."""
    harness = make_harness(fast_path=False)
    client = ask_with_failing_lookups(harness, ValueError("no row for tweety"))
    assert client.answers == [(500, ApiError.INTERNAL.body)]
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith("unhandled exception:\n")
    assert f"X-Request-ID: {vars(record)['request_id']}\r\n".encode() in client.socket.sent
    assert message.endswith("ValueError")
    assert "in result" in message
    assert "tweety" not in caplog.text
    draining = harness.loop.create_task(harness.server.drain())
    harness.loop.forward(1.2)
    assert draining.done()


@pytest.mark.parametrize("times", [0, 2], ids=["handlers", "fast path"])
def test_a_lookup_that_was_cancelled_is_500(make_harness: MakeHarness, times: int) -> None:
    """As when the service is aborted; without a response its client would wait."""
    harness = make_harness()
    harness.ask(*[ask_for("alice")] * times)
    client = ask_with_failing_lookups(harness, asyncio.CancelledError())
    assert client.answers == [(500, ApiError.INTERNAL.body)]
    assert harness.app.asked == (times or 1)
    batch = ask_for('", "items": [{"input": "@a"}], "": "').replace(b"/url", b"/batch")
    assert b'"undetermined":1' in harness.ask(batch).answers[0][1]


class Waiting(ApiHandler):
    """Waits until its task is cancelled."""

    async def get(self) -> None:
        await asyncio.sleep(60)


class FailingAfterResponse(ApiHandler):
    """Fails when its response is sent already."""

    def get(self) -> None:
        self.finish(b"{}")
        raise RuntimeError


def ask_handler(make: MakeHarness, handler: type[ApiHandler]) -> FakeClient:
    """Send a request to a handler."""
    api = ApiContext(None, IDENTIFIERS, KeyRing([]))  # type: ignore[arg-type]
    app = Application([("/", handler, {"api": api})], log_function=ignore)
    return make(app=app).ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def test_a_request_whose_task_is_cancelled_is_500(make_harness: MakeHarness) -> None:
    client = ask_handler(make_harness, Waiting)
    (task,) = asyncio.all_tasks(client.loop)
    task.cancel()
    client.loop.settle()
    assert client.answers == [(500, ApiError.INTERNAL.body)]


def test_a_failure_after_the_response_sends_no_second_one(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask_handler(make_harness, FailingAfterResponse).answers == [(200, b"{}")]
    assert "unhandled exception:" in caplog.text


@pytest.mark.parametrize(
    ("answer", "breaker", "seconds", "says_try_again", "is_asked_once"),
    [
        (http(503, b"", "Retry-After: 40"), {}, range(38, 41), True, True),
        (http(503), {}, range(1, 2), True, False),
        (http(401), {}, range(60, 61), False, False),
        (http(200, b"[]"), {}, range(60, 61), False, False),
        (http(500), BREAKER, range(20, 38), True, True),
    ],
    ids=["asked to wait", "unavailable", "credentials refused", "no record", "circuit breaker"],
)
async def test_response_of_an_undetermined_lookup_says_when_to_retry(
    tmp_path: Path,
    answer: bytes,
    breaker: dict[str, object],
    seconds: range,
    *,
    says_try_again: bool,
    is_asked_once: bool,
) -> None:
    async with serving(answer) as upstream:
        backend = {"name": "crm", "kind": "upstream", "base_url": upstream.address}
        config = re.sub("(?m)^server: .*$", "server: {host: 127.0.0.1, port: 0}", CONFIG)
        line = json.dumps({**backend, "breaker": breaker})
        async with serving_here(f"{config}  - {line}\n", tmp_path) as service:
            client = Client(service.port)
            for number in range(4):
                reply = await asyncio.to_thread(client.by_input, f"@user{number}")
                assert (reply.status, reply.code) == (503, "backend_unavailable")
                assert int(reply.headers["retry-after"]) in seconds
                assert ("try again" in json.loads(reply.body)["message"]) is says_try_again
    assert (len(upstream.requests) == 1) is is_asked_once

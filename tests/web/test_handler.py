"""The one place where a handler touches what is private to Tornado."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from tornado.httputil import HTTPConnection, HTTPHeaders, HTTPServerRequest, RequestStartLine
from tornado.web import Application, RequestHandler

from tornado_idv.web.app import Request
from tornado_idv.web.handler import JsonHandler
from tornado_idv.web.refusals import Refusal

OUR_OWN = {"wire", "request", "_headers", "_waits"}
"""What a `JsonHandler` alone has, or has in another form."""

OF_NO_USE = {"ui", "_auto_finish", "_prepared_future", "path_args", "path_kwargs"}
"""What Tornado keeps for templates, for handlers that never finish, and for patterns in routes."""


class Told(HTTPConnection):
    """A connection that notes what it is told."""

    request_id = "1"

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def write_headers(self, start_line: Any, headers: HTTPHeaders, chunk: Any = None) -> Any:
        self.calls.append(("headers", *start_line, headers.get("Content-Length"), chunk))
        return asyncio.get_running_loop().create_future()

    def write(self, chunk: bytes) -> Any:
        self.calls.append(("write", chunk))
        return asyncio.get_running_loop().create_future()

    def finish(self) -> None:
        self.calls.append(("finish",))

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        self.calls.append(("close callback", callback is not None))


Act = Callable[[Any], object]


def whole(handler: RequestHandler) -> None:
    handler.set_status(404)
    handler.set_header("Retry-After", "1")
    handler.finish(b"{}")


def in_parts(handler: RequestHandler) -> None:
    handler.set_header("Content-Length", "4")
    handler.write(b"{}")
    handler.flush()
    handler.finish(b"{}")


def untold(_: RequestHandler) -> None:
    """Leaves the end to whoever called."""


async def later(handler: RequestHandler) -> None:
    await asyncio.sleep(0)
    handler.finish(b"{}")


async def later_untold(_: RequestHandler) -> None:
    await asyncio.sleep(0)


@pytest.fixture
def application() -> Iterator[Application]:
    return Application(log_function=lambda _: None)


async def theirs(application: Application, method: str, act: Act) -> tuple[Told, dict[str, Any]]:
    class Handler(RequestHandler):
        def get(self) -> Any:
            return act(self)

        head = get

    connection = Told()
    request = HTTPServerRequest(
        start_line=RequestStartLine(method, "/", "HTTP/1.1"),
        headers=HTTPHeaders({"Host": "x"}),
        connection=connection,
    )
    handler = Handler(application, request)
    await handler._execute([])
    return connection, vars(handler)


async def ours(application: Application, method: str, act: Act) -> tuple[Told, dict[str, Any]]:
    class Handler(JsonHandler):
        allowed = ("GET", "HEAD")

        def get(self) -> Any:
            return act(self)

        head = get

    connection = Told()
    start_line = RequestStartLine(method, "/", "HTTP/1.1")
    handler = Handler(application, Request(start_line, HTTPHeaders(), connection))
    handler.run()
    if "_task" in vars(handler):
        await vars(handler).pop("_task")
    return connection, vars(handler)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("act", [whole, in_parts, untold, later, later_untold])
async def test_a_handler_comes_to_what_tornado_s_own_would(
    application: Application, method: str, act: Act
) -> None:
    """The same calls in the same order, and the same state in the end."""
    (told_theirs, state_theirs), (told_ours, state_ours) = (
        await theirs(application, method, act),
        await ours(application, method, act),
    )
    assert told_ours.calls == told_theirs.calls
    assert _compared(state_ours) == _compared(state_theirs)


def _compared(state: dict[str, Any]) -> dict[str, Any]:
    written = cast(HTTPHeaders, state["_headers"])
    headers = {name: value for name, value in written.get_all() if name not in _SERVER_WRITES}
    left = {name: each for name, each in state.items() if name not in OUR_OWN | OF_NO_USE}
    return {**left, "_transforms": [], "headers": headers}


_SERVER_WRITES = {"Server", "Content-Type", "Date", "Etag"}


async def test_an_answer_is_given_once(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    def twice(handler: RequestHandler) -> None:
        handler.finish(b"{}")
        handler.finish(b"{}")

    connection, _ = await ours(application, "GET", twice)
    assert [call[0] for call in connection.calls].count("finish") == 1
    assert "unhandled exception in request 1:" in caplog.text


def failing(handler: RequestHandler) -> None:
    handler.set_header("X-Half-Done", "1")
    handler.write(b"half")
    raise ValueError


async def test_error_response_has_no_headers_of_the_failed_handler(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    connection, state = await ours(application, "GET", failing)
    assert "X-Half-Done" not in state["_headers"]
    ((_, _, status, _, _, body), _) = connection.calls[-2:]
    assert status == 500
    assert body == Refusal.INTERNAL.body
    assert "unhandled exception in request 1:" in caplog.text


async def test_a_cancelled_handler_sends_no_response(application: Application) -> None:
    """As when the service ends: a response now would be a 500 that no defect caused."""

    class Handler(JsonHandler):
        allowed = ("GET",)

        async def get(self) -> None:
            await asyncio.get_running_loop().create_future()

    connection = Told()
    handler = Handler(
        application, Request(RequestStartLine("GET", "/", "HTTP/1.1"), HTTPHeaders(), connection)
    )
    handler.run()
    task = vars(handler)["_task"]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [call[0] for call in connection.calls] == ["close callback"]

"""One request in, one answer out: no spelling of a header makes two readers disagree."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from support.http.framing_spellings import framing, sample, spellings
from support.http.in_process import harnesses

pytestmark = pytest.mark.slow

HARD = "WIRE_HARD" in os.environ


class RecordingApp(HTTPServerConnectionDelegate):
    """An application that responds immediately and records its requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        return _Telling(self, request_conn)


class _Telling(HTTPMessageDelegate):
    def __init__(self, app: RecordingApp, connection: HTTPConnection) -> None:
        self._app = app
        self._connection = connection

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        assert isinstance(start_line, RequestStartLine)
        self._app.asked.append(start_line.path)

    def finish(self) -> None:
        headers = HTTPHeaders({"Content-Length": "2"})
        self._connection.write_headers(ResponseStartLine("HTTP/1.1", 200, "OK"), headers, b"{}")
        self._connection.finish()


def test_no_byte_around_the_coding_gets_a_request_two_answers() -> None:
    """Each is refused, or read in the one way that every strict reader reads it."""
    app = RecordingApp()
    wrong = []
    seen: Counter[str] = Counter()
    with harnesses() as new_harness:
        harness = new_harness(app=app)
        for spelling in spellings() if HARD else sample():
            app.asked.clear()
            client = harness.ask(spelling.data)
            got = client.statuses, [*app.asked], client.socket.closed
            seen[framing(spelling.lines)] += 1
            if got != spelling.expected:
                wrong.append((spelling.lines, got, spelling.expected))
            client.socket.vanish()
    assert wrong == []
    assert seen.total() >= 6 * 257 * 7 * (3 if HARD else 1)
    assert min(seen.values()) > 5, seen

"""Any application of Tornado's can be served: whole and streamed responses, every version."""

from collections.abc import Callable
from typing import cast

import pytest
from tornado.httputil import HTTPHeaders, ResponseStartLine
from tornado.web import Application, RequestHandler, stream_request_body

from support.http.http_server import ignore
from support.http.in_process import Harness
from tornado_idv.http.exchange import Exchange, Peer, ResponseSink
from tornado_idv.http.head import parse_head


class Whole(RequestHandler):
    def get(self) -> None:
        self.finish(self.get_argument("name", "no name"))

    def post(self) -> None:
        self.finish({"name": self.get_body_argument("name")})


class Streamed(RequestHandler):
    async def get(self) -> None:
        for part in ("one", "", "two"):
            self.write(part)
            await self.flush()


class NoContent(RequestHandler):
    def get(self) -> None:
        self.set_status(204)


@stream_request_body
class Upload(RequestHandler):
    """Takes its body in parts."""

    def initialize(self) -> None:
        self.received = 0

    def data_received(self, chunk: bytes) -> None:
        self.received += len(chunk)

    def post(self) -> None:
        self.finish(f"{self.received} bytes")


APP = Application(
    [("/", Whole), ("/stream", Streamed), ("/none", NoContent), ("/upload", Upload)],
    log_function=ignore,
)
Send = Callable[..., str]


@pytest.fixture
def exchange(make_harness: Callable[..., Harness]) -> Send:
    """Return what gives all that is sent back to a request and its repetitions."""

    def run(*lines: str, body: str = "", times: int = 1) -> str:
        request = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body])
        client = make_harness(app=APP).ask(request.encode() * times)
        return client.socket.sent.decode("latin-1")

    return run


@pytest.mark.parametrize(
    ("line", "body", "response"),
    [
        ("GET /?name=alice", "", "alice"),
        ("POST /", "name=alice", '{"name": "alice"}'),
        ("POST /upload", "x" * 5000, "5000 bytes"),
    ],
    ids=["arguments", "form", "body in parts"],
)
def test_request_reaches_a_handler(exchange: Send, line: str, body: str, response: str) -> None:
    form = "Content-Type: application/x-www-form-urlencoded"
    received = exchange(f"{line} HTTP/1.1", "Host: x", form, body=body)
    assert received.startswith("HTTP/1.1 200 OK\r\n")
    assert received.endswith(f"\r\n\r\n{response}")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_response_without_a_length_ends_with_the_connection(exchange: Send, version: str) -> None:
    line = f"GET /stream HTTP/{version}"
    response = exchange(line, "Host: x", "Connection: keep-alive", times=2)
    assert response.count("Connection: close\r\n") == response.count("HTTP/1.1 ") == 1
    assert response.endswith("\r\n\r\nonetwo")


@pytest.mark.parametrize("line", ["GET /none HTTP/1.1", "HEAD / HTTP/1.1", "GET / HTTP/1.1"])
def test_a_response_without_a_body_needs_no_length(exchange: Send, line: str) -> None:
    """204, a response to HEAD, 304."""
    response = exchange(line, "Host: x", "If-None-Match: *", times=2)
    assert response.count("HTTP/1.1 ") == 2
    assert response.endswith("\r\n\r\n")


@pytest.mark.parametrize("reason", ["OK\rX: y", "OK\nX: y"])
def test_a_line_break_in_a_response_head_is_not_sent(reason: str) -> None:
    head = parse_head(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0)
    # Without a connection: nothing may reach it.
    response = Exchange(cast("ResponseSink", None), head, Peer("127.0.0.1", "http"))
    with pytest.raises(ValueError, match="line break"):
        response.write_headers(ResponseStartLine("HTTP/1.1", 200, reason), HTTPHeaders())

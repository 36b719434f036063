"""Requests as bytes: framing, targets, media types, limits; one request, one answer."""

from __future__ import annotations

import pytest
from serving import KEY, Client

URL = "/api/v1/identify/url"
BODY = b'{"input": "@alice"}'
AUTH = f"Authorization: Bearer {KEY}\r\n".encode()
CHUNKS = b"8\r\n" + BODY[:8] + b"\r\nb\r\n" + BODY[8:] + b"\r\n0\r\n\r\n"


def request(
    *fields: bytes, body: bytes = BODY, line: bytes = b"POST /api/v1/identify/url HTTP/1.1"
) -> bytes:
    """A request with our key and just these header fields."""
    return line + b"\r\n" + AUTH + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


LENGTH = b"Content-Length: %d" % len(BODY)
HOST = b"Host: x"

STALLED_CHUNKS = request(HOST, b"Transfer-Encoding: chunked", body=CHUNKS[:-20])
EXTENDED = b"8;a=b;c\r\n" + BODY[:8] + b"\r\nB;x\r\n" + BODY[8:]
TRAILED = EXTENDED + b"\r\n000\r\nX-Sum: 1\r\nContent-Length: 5\r\n\r\n"

READ = {
    "chunks": request(HOST, b"Transfer-Encoding: chunked", body=CHUNKS),
    "chunks in another case": request(HOST, b"transfer-ENCODING: Chunked", body=CHUNKS),
    "chunks with extensions and trailers": request(
        HOST, b"Transfer-Encoding: chunked", body=TRAILED
    ),
    "an absolute target": request(HOST, LENGTH, line=b"POST http://x/api/v1/identify/url HTTP/1.1"),
    "an empty host": request(b"Host: ", LENGTH),
    "any host": request(b"Host: elsewhere.example:99", LENGTH),
    "HTTP/1.0 without a host": request(LENGTH, line=b"POST /api/v1/identify/url HTTP/1.0"),
    "an empty line in front": b"\r\n" + request(HOST, LENGTH),
    "bytes beyond ASCII in a header": request(HOST, LENGTH, b"X-Name: \xc3\xa9\xff"),
    "a query": request(HOST, LENGTH, line=b"POST /api/v1/identify/url?a=1&a=2 HTTP/1.1"),
    "a method override": request(HOST, LENGTH, b"X-HTTP-Method-Override: DELETE"),
}

REFUSED = {
    "a length with a sign": (request(HOST, b"Content-Length: +19"), 400),
    "a length in hexadecimal": (request(HOST, b"Content-Length: 0x13"), 400),
    "an empty length": (request(HOST, b"Content-Length: "), 400),
    "a length and a word": (request(HOST, b"Content-Length: 19 bytes"), 400),
    "a length without end": (request(HOST, b"Content-Length: " + b"1" * 5000), 400),
    "a length repeated": (request(HOST, LENGTH, LENGTH), 400),
    "a length as a list": (request(HOST, b"Content-Length: 19, 19"), 400),
    "a length and chunks": (request(HOST, LENGTH, b"Transfer-Encoding: chunked", body=CHUNKS), 400),
    "another coding": (request(HOST, b"Transfer-Encoding: gzip"), 400),
    "two codings": (request(HOST, b"Transfer-Encoding: gzip, chunked", body=CHUNKS), 400),
    "an identity coding": (request(HOST, b"Transfer-Encoding: identity"), 400),
    "an underscore": (request(HOST, b"Transfer_Encoding: chunked", body=CHUNKS), 400),
    "an underscored length": (request(HOST, b"Content_Length: 19"), 400),
    "chunks in HTTP/1.0": (
        request(HOST, b"Transfer-Encoding: chunked", body=CHUNKS, line=b"POST / HTTP/1.0"),
        400,
    ),
    "no host": (request(LENGTH), 400),
    "two hosts": (request(HOST, HOST, LENGTH), 400),
    "a host with a path": (request(b"Host: x/y", LENGTH), 400),
    "a folded header": (request(HOST, LENGTH, b"X-A: b\r\n c"), 400),
    "a blank before the colon": (request(HOST, LENGTH, b"X-A : b"), 400),
    "no name": (request(HOST, LENGTH, b": b"), 400),
    "a NUL": (request(HOST, LENGTH, b"X-A: a\0b"), 400),
    "a carriage return": (request(HOST, LENGTH, b"X-A: a\rb"), 400),
    "two blanks in the first line": (request(HOST, line=b"POST  / HTTP/1.1"), 400),
    "a target of no form": (request(HOST, line=b"POST api/v1 HTTP/1.1"), 400),
    "another version": (request(HOST, line=b"POST / HTTP/2.0"), 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "a chunk size with a sign": (
        request(HOST, b"Transfer-Encoding: chunked", body=b"-1\r\n\r\n"),
        400,
    ),
    "a chunk size of no digits": (
        request(HOST, b"Transfer-Encoding: chunked", body=b"x\r\n\r\n"),
        400,
    ),
    "chunks over the limit": (
        request(
            HOST, b"Transfer-Encoding: chunked", body=b"5000\r\n" + b" " * 0x5000 + b"\r\n0\r\n\r\n"
        ),
        413,
    ),
    "a target over the limit": (
        request(HOST, LENGTH, line=b"POST /" + b"a" * 2048 + b" HTTP/1.1"),
        414,
    ),
    "101 headers": (request(HOST, LENGTH, *[b"X-%d: y" % i for i in range(98)]), 431),
    "a length over the limit": (request(HOST, b"Content-Length: 16385", body=b""), 413),
    "100 GB announced": (
        request(HOST, b"Content-Length: 100000000000", b"Expect: 100-continue", body=b""),
        413,
    ),
    "another expectation": (request(HOST, LENGTH, b"Expect: tea"), 417),
    "headers over 16 KiB": (request(HOST, LENGTH, b"X-A: " + b"y" * 16384), 431),
    "headers ended by CRLF LF": (request(HOST, LENGTH)[: -len(BODY) - 2] + b"\n" + BODY, 400),
    "a line ended by LF": (request(HOST, LENGTH).replace(b"\r\nHost", b"\nHost"), 400),
    "a host with a broken escape": (request(b"Host: %zz", LENGTH), 400),
    "a port without end": (request(b"Host: x:" + b"9" * 5000, LENGTH), 400),
}
CODES = {
    400: "bad_request",
    413: "body_too_large",
    414: "uri_too_long",
    417: "expectation_failed",
    431: "headers_too_large",
}

LAST = {
    "no length": request(HOST, body=b""),
    "no more wanted": request(HOST, LENGTH, b"Connection: x, Close"),
    "no more wanted, no body": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "HTTP/1.0": request(LENGTH, line=b"POST /api/v1/identify/url HTTP/1.0"),
    "HTTP/1.0 with both options": request(
        LENGTH, b"Connection: keep-alive, close", line=b"POST /api/v1/identify/url HTTP/1.0"
    ),
    "a method of nobody": b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n",
}

NO_ROUTES = [
    "/api/v1/identify/url/",
    "/api/v1/identify/URL",
    "/api/v1/identify/%75rl",
    "//api/v1/identify/url",
    "/api/v1/./identify/url",
    "/api/v1/identify/url#x",
    "/api/v1/identify/url%0a",
    "/api/v2/identify/url",
]


@pytest.mark.parametrize("data", READ.values(), ids=READ)
def test_a_request_that_is_odd_but_right_is_answered(wire: Client, data: bytes) -> None:
    (reply,) = wire.raw(data)
    assert reply.status == 200


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED)
def test_a_request_that_two_readers_could_take_apart_is_refused(
    wire: Client, data: bytes, status: int
) -> None:
    """Refused once, and the connection closed: what follows is never run."""
    (reply,) = wire.until_closed(data + request(HOST, LENGTH))
    assert (reply.status, reply.code) == (status, CODES[status])
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize("data", LAST.values(), ids=LAST)
def test_after_some_requests_the_connection_is_closed(wire: Client, data: bytes) -> None:
    """What the caller wants to be the last is; so is what two readers could end elsewhere."""
    (reply,) = wire.until_closed(data + request(HOST, LENGTH))
    assert reply.headers["connection"] == "close"
    assert reply.status in (200, 404, 422)


@pytest.mark.parametrize(
    "data",
    [
        request(LENGTH, b"Connection: keep-alive", line=b"POST /api/v1/identify/url HTTP/1.0"),
        request(b"Connection: keep-alive", line=b"GET / HTTP/1.0", body=b""),
    ],
    ids=["with a body", "without"],
)
def test_a_caller_of_http_1_0_may_stay(wire: Client, data: bytes) -> None:
    first, second = wire.raw(data * 2, expect=2)
    assert first.headers["connection"] == second.headers["connection"] == "keep-alive"


def test_empty_lines_before_a_request_are_let_pass(wire: Client) -> None:
    replies = wire.raw(b"\r\n\r\n" + request(HOST, LENGTH) + b"\r\n" + request(HOST, LENGTH), 2)
    assert [reply.status for reply in replies] == [200, 200]


def test_what_follows_a_request_is_a_request_of_its_own(wire: Client) -> None:
    replies = wire.raw(request(HOST, LENGTH) * 5, expect=5)
    assert [reply.status for reply in replies] == [200] * 5
    good, bad = wire.until_closed(request(HOST, LENGTH) + b"NONSENSE\r\n\r\n")
    assert (good.status, bad.status) == (200, 400)


@pytest.mark.parametrize("value", [b"100-continue", b"100-Continue"])
def test_a_caller_who_waits_is_told_to_go_on(wire: Client, value: bytes) -> None:
    replies = wire.raw(request(HOST, LENGTH, b"Expect: " + value), expect=2)
    assert [reply.status for reply in replies] == [100, 200]


@pytest.mark.parametrize(
    "data",
    [b"\r", request(HOST)[:-30], request(HOST, LENGTH)[:-3], STALLED_CHUNKS],
    ids=["half a line", "half the headers", "half the body", "half a chunk"],
)
def test_a_caller_who_stalls_is_told_so(wire: Client, data: bytes) -> None:
    (reply,) = wire.until_closed(data)
    assert (reply.status, reply.code) == (408, "request_timeout")
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize("data", [b"", b"\r\n"], ids=["nothing", "an empty line"])
def test_a_caller_who_began_nothing_is_left(wire: Client, data: bytes) -> None:
    assert wire.until_closed(data) == []


def test_a_caller_who_was_answered_and_stalls_is_left(wire: Client) -> None:
    (reply,) = wire.until_closed(request(HOST, LENGTH))
    assert reply.status == 200


@pytest.mark.parametrize("path", NO_ROUTES)
def test_a_route_has_one_spelling(wire: Client, path: str) -> None:
    reply = wire.post(path, BODY)
    assert (reply.status, reply.code) == (404, "no_such_route")


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (None, 200),
        ("", 200),
        ("application/json", 200),
        ("Application/JSON; charset=UTF-8", 200),
        ('application/json; charset="utf-8"', 200),
        ("application/problem+json", 200),
        ("application/json; charset=latin-1", 415),
        ("application/json, application/json", 415),
        ("text/json", 415),
        ("application/jsonx", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("multipart/form-data", 415),
        ("nonsense", 415),
    ],
)
def test_only_json_is_read(wire: Client, value: str | None, status: int) -> None:
    assert wire.post(URL, BODY, {"Content-Type": value}).status == status


@pytest.mark.parametrize(
    ("value", "status"),
    [("identity", 200), ("IDENTITY", 200), ("gzip", 415), ("identity, br", 415)],
)
def test_no_coding_is_undone(wire: Client, value: str, status: int) -> None:
    assert wire.post(URL, BODY, {"Content-Encoding": value}).status == status


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("", 200),
        ("*/*", 200),
        ("application/*", 200),
        ("text/html, application/json;q=0.1", 200),
        ("text/html, */*;q=0.1", 200),
        ("no;;such=thing", 200),
        ("text/html", 406),
        ("application/json;q=0", 406),
        ("*/*, application/json;q=0", 406),
        ("text/*", 406),
    ],
)
def test_only_json_is_answered(wire: Client, value: str, status: int) -> None:
    assert wire.post(URL, BODY, {"Accept": value}).status == status

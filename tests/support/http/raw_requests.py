"""Requests as bytes, accepted and rejected by their framing, targets, media types and limits."""

from support.processes.service import KEY

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
CHUNKED = b"Transfer-Encoding: chunked"

STALLED_CHUNKS = request(HOST, CHUNKED, body=CHUNKS[:-20])
EXTENDED = b"8;a=b;c\r\n" + BODY[:8] + b"\r\nB;x\r\n" + BODY[8:]
TRAILED = EXTENDED + b"\r\n000\r\nX-Sum: 1\r\nContent-Length: 5\r\n\r\n"

_FULL = b"X-A: " + b"a" * (16 * 1024 - len(request(HOST, LENGTH, b"X-A: ", body=b"")))
"""A field with which a head has 16 KiB."""


READ = {
    "a head at the limit": request(HOST, LENGTH, _FULL),
    "100 headers": request(HOST, LENGTH, *[b"X-%d: y" % i for i in range(97)]),
    "chunks": request(HOST, CHUNKED, body=CHUNKS),
    "chunks in another case": request(HOST, b"transfer-ENCODING: Chunked", body=CHUNKS),
    "chunks with extensions and trailers": request(HOST, CHUNKED, body=TRAILED),
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
    "an empty length": (request(HOST, b"Content-Length: "), 400),
    "a length without end": (request(HOST, b"Content-Length: " + b"1" * 5000), 400),
    "a length repeated": (request(HOST, LENGTH, LENGTH), 400),
    "a length as a list": (request(HOST, b"Content-Length: 19, 19"), 400),
    "a length and chunks": (request(HOST, LENGTH, CHUNKED, body=CHUNKS), 400),
    "another coding": (request(HOST, b"Transfer-Encoding: gzip"), 400),
    "two codings": (request(HOST, b"Transfer-Encoding: gzip, chunked", body=CHUNKS), 400),
    "an underscore": (request(HOST, b"Transfer_Encoding: chunked", body=CHUNKS), 400),
    "a query of 1,001 fields": (
        request(HOST, LENGTH, line=b"POST /?" + b"&" * 1000 + b" HTTP/1.1"),
        400,
    ),
    "an underscored old length": (request(HOST, b"Transfer_Length: 19"), 400),
    "an underscored length": (request(HOST, b"Content_Length: 19"), 400),
    "chunks in HTTP/1.0": (request(HOST, CHUNKED, body=CHUNKS, line=b"POST / HTTP/1.0"), 400),
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
    "chunks over the limit": (
        request(HOST, CHUNKED, body=b"5000\r\n" + b" " * 0x5000 + b"\r\n0\r\n\r\n"),
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
    "a head over the limit": (request(HOST, LENGTH, _FULL + b"a"), 431),
    "chunks twice": (request(HOST, CHUNKED, CHUNKED, body=CHUNKS), 400),
    "chunks twice in one line": (request(HOST, CHUNKED + b", chunked", body=CHUNKS), 400),
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
    "an unknown method": b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n",
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
    "/".ljust(2048, "a"),
    "http://x/".ljust(2056, "a"),
]

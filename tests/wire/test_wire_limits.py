"""Sizes at their limit are accepted, and one more is refused."""

from __future__ import annotations

import pytest

from support.processes.service import KEY, Client

BODY = b'{"input": "@alice"}'
MAX_HEAD = 16 * 1024
MAX_TARGET = 2048


def request(*fields: bytes, target: bytes = b"/api/v1/identify/url", body: bytes = BODY) -> bytes:
    lines = [
        b"POST " + target + b" HTTP/1.1",
        b"Host: x",
        b"Authorization: Bearer " + KEY.encode(),
        *fields,
    ]
    return b"\r\n".join([*lines, b"", body])


LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"


def head_of(size: int) -> bytes:
    """A request whose head has this many bytes."""
    usual = len(request(LENGTH, b"X-A: ", body=b""))
    return request(LENGTH, b"X-A: " + b"a" * (size - usual))


def chunked(extension: bytes) -> bytes:
    """A request whose chunks have one byte and this extension."""
    chunks = b"".join(b"1%s\r\n%c\r\n" % (extension, byte) for byte in BODY.ljust(128))
    return request(CHUNKED, body=chunks + b"0\r\n\r\n")


SIZES = {
    "a head at the limit": (head_of(MAX_HEAD), 200),
    "a head over the limit": (head_of(MAX_HEAD + 1), 431),
    "a target at the limit": (request(LENGTH, target=b"/".ljust(MAX_TARGET, b"a")), 404),
    "a target over the limit": (request(LENGTH, target=b"/".ljust(MAX_TARGET + 1, b"a")), 414),
    "a path at the limit in an absolute target": (
        request(LENGTH, target=b"http://x/".ljust(MAX_TARGET + 8, b"a")),
        404,
    ),
    "chunk extensions at the limit": (chunked(b";" + b"x" * 126), 200),
    "chunk extensions over the limit": (chunked(b";" + b"x" * 127), 413),
}


@pytest.mark.parametrize(("data", "status"), SIZES.values(), ids=SIZES)
def test_limit_is_exact(wire: Client, data: bytes, status: int) -> None:
    (reply,) = wire.raw(data)
    assert reply.status == status
    assert reply.headers.get("connection") == ("close" if status > 404 else None)


@pytest.mark.parametrize("second", [b"chunked", b"identity", b"gzip"])
def test_two_transfer_encodings_are_rejected(wire: Client, second: bytes) -> None:
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    for fields in ([CHUNKED, b"Transfer-Encoding: " + second], [CHUNKED + b", " + second]):
        (reply,) = wire.until_closed(request(*fields, body=chunks))
        assert (reply.status, reply.code) == (400, "bad_request")

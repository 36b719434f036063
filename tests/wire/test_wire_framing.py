"""One request in, one answer out: no spelling of a header makes two readers disagree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from inprocess import grounds
from serving import Client
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)

SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
AFTER = b"POST /after HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
BODY = b"0\r\n\r\n" + SMUGGLED
"""By its length all of it is one body; in chunks the body is empty, and a request follows it."""
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
PLACES = {
    "before the name": (b"", b"Transfer-Encoding: chunked"),
    "in the name": (b"Transfer", b"Encoding: chunked"),
    "before the colon": (b"Transfer-Encoding", b": chunked"),
    "behind the colon": (b"Transfer-Encoding:", b"chunked"),
    "in the value": (b"Transfer-Encoding: chun", b"ked"),
    "behind the value": (b"Transfer-Encoding: chunked", b""),
}
ENDS = (b"\r\n", b"\n", b"\r", b"\n\r", b"\r\r\n", b"\r\n\n", b"\0\r\n")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_LINE = re.compile(rb"([^\r\n]*)\r\n")


class Told(HTTPServerConnectionDelegate):
    """An application that answers at once, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        return _Telling(self, request_conn)


class _Telling(HTTPMessageDelegate):
    def __init__(self, told: Told, connection: HTTPConnection) -> None:
        self._told = told
        self._connection = connection

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        assert isinstance(start_line, RequestStartLine)
        self._told.asked.append(start_line.path)

    def finish(self) -> None:
        headers = HTTPHeaders({"Content-Length": "2"})
        self._connection.write_headers(ResponseStartLine("HTTP/1.1", 200, "OK"), headers, b"{}")
        self._connection.finish()


@dataclass(frozen=True)
class Spelling:
    """A request whose header lines are these, and what is right to do with it."""

    lines: bytes

    @property
    def odd(self) -> bytes:
        """The request alone."""
        return b"POST /first HTTP/1.1\r\nHost: x\r\n" + self.lines + b"\r\n" + BODY

    @property
    def data(self) -> bytes:
        """The request and one more."""
        return self.odd + AFTER

    @property
    def expected(self) -> tuple[list[int], list[str], bool]:
        """Statuses, paths that are asked, and whether the connection is closed."""
        framing = _framing(self.lines)
        if framing == "refused":
            return [400], [], True
        if framing == "chunks":
            return [200] * 3, ["/first", "/smuggled", "/after"], False
        if framing == "length":
            return [200] * 2, ["/first", "/after"], False
        return [200], ["/first"], True


def _framing(lines: bytes) -> str:
    """How a request with these header lines ends, by RFC 9112 alone, read strictly."""
    names: Counter[bytes] = Counter()
    at = 0
    while at < len(lines):
        line = _LINE.match(lines, at)
        name = _name(line[1]) if line else None
        if line is None or name is None:
            return "refused"
        names[name] += 1
        at = line.end()
    chunks, length = names[b"transfer-encoding"], names[b"content-length"]
    if chunks and length:
        return "refused"
    return "chunks" if chunks else "length" if length else "none"


def _name(line: bytes) -> bytes | None:
    """What a header line names; None if it is not to be accepted."""
    name, colon, value = line.partition(b":")
    name = name.lower()
    well_formed = colon and _TOKEN.fullmatch(name) and _VALUE.fullmatch(value)
    if not well_formed or name == b"transfer_encoding":
        return None
    # llhttp is stricter than it need be with a tab behind the value.
    if name == b"transfer-encoding" and value.lstrip(b" \t").rstrip(b" ").lower() != b"chunked":
        return None
    return name


def spellings() -> Iterator[Spelling]:
    """Every byte at every place with every end of line, alone and beside a length."""
    for before, after in PLACES.values():
        for byte in [b"", *(bytes([value]) for value in range(256))]:
            for end in ENDS:
                line = before + byte + after + end
                yield from map(Spelling, (line, LENGTH + line, line + LENGTH))


def test_no_byte_around_the_coding_gets_a_request_two_answers() -> None:
    """Each is refused, or read in the one way that every strict reader reads it."""
    told = Told()
    wrong = []
    seen: Counter[str] = Counter()
    with grounds() as ground_of:
        ground = ground_of(app=told)
        for spelling in spellings():
            told.asked.clear()
            caller = ground.ask(spelling.data)
            got = caller.statuses, [*told.asked], caller.socket.closed
            seen[_framing(spelling.lines)] += 1
            if got != spelling.expected:
                wrong.append((spelling.lines, got, spelling.expected))
            caller.socket.vanish()
    assert wrong == []
    assert seen.total() == 6 * 257 * 7 * 3
    assert min(seen.values()) > 5, seen


SAMPLE = [*spellings()][::499]


def test_nor_does_it_over_a_real_socket(wire: Client) -> None:
    for spelling in SAMPLE:
        statuses, paths, closed = spelling.expected
        data = spelling.data + (b"" if closed else b"POST /end HTTP/1.0\r\n\r\n")
        got = [reply.status for reply in wire.until_closed(data)]
        expected = statuses if not paths else [404] * (len(paths) + (not closed))
        assert got == expected, spelling.lines


TARGETS = ["*", "//", "/?", "http://x", "/%ff", "/" + "?&=%zz;" * 200, "http://x:99?/", "/\\"]
METHODS = ["GET", "HEAD", "POST", "OPTIONS", "DELETE", "BREW", "PRI", "CONNECT", "SOURCE"]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_target_gets_one_answer(method: str) -> None:
    with grounds() as ground_of:
        ground = ground_of()
        for target in TARGETS:
            caller = ground.ask(f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answers = caller.socket.sent.count(b"HTTP/1.1 ")
            assert answers == 1, target

"""The head of a request: parsed by llhttp, and refused where its framing is in doubt.

One request in, one answer out: where two readers could see the end of a request in
different places (RFC 9112, 11.2), it is refused, also if llhttp would let it pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httptools
from tornado.httputil import HTTPHeaders, RequestStartLine

from tornado_idv.web.handler import Understood
from tornado_idv.web.refusals import Refusal, Refused

MAX_HEAD = 16 * 1024
MAX_TARGET = 2048
MAX_FIELDS = 100
HEAD_END = b"\r\n\r\n"
_LONGEST_KNOWN = 1024
_MOST_FIELDS_KNOWN = 20
_MOST_KNOWN = 2
_FIRST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) (HTTP/1\.[01])\r\n")
_MISSPELT = frozenset(
    {"content_length", "content_encoding", "transfer_length", "transfer_encoding"}
)
# As Tornado has it, and no longer than a name with its port can be.
_HOST = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+;=:\[\]-]|%[0-9A-Fa-f]{2}){0,261}", re.ASCII)
_ORIGIN = re.compile(r"https?://[^/?#]+", re.IGNORECASE)
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class RequestHeaders(HTTPHeaders):
    """The header fields of one request, as llhttp read them.

    It answers as Tornado's own does, which would check each field once more.
    """

    def __init__(self, fields: list[tuple[bytes, bytes]] = []) -> None:  # noqa: B006 read only
        self._values: dict[str, list[str]] = {}
        for name, value in fields:
            self.add(name.decode("ascii"), value.rstrip(b" \t").decode("latin-1"))

    def add(self, name: str, value: str, **_: object) -> None:
        self._values.setdefault(name.lower(), []).append(value)

    def get(self, name: str, default: Any = None) -> Any:
        """As `Mapping` has it, which would raise and catch an error for an absent header."""
        values = self._values.get(name.lower())
        return default if values is None else ",".join(values)

    def get_list(self, name: str) -> list[str]:
        return self._values.get(name.lower(), [])

    def get_all(self) -> Iterator[tuple[str, str]]:
        return ((name, value) for name, values in self._values.items() for value in values)

    def __getitem__(self, name: str) -> str:
        return ",".join(self._values[name.lower()])

    def __setitem__(self, name: str, value: str) -> None:
        self._values[name.lower()] = [value]

    def __delitem__(self, name: str) -> None:
        del self._values[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)


@dataclass(frozen=True, slots=True)
class Head:
    """What a head says. ``length`` is the body's, in bytes; ``None`` for a body in chunks.

    ``forwarded`` is ``X-Forwarded-For``, several lines joined with commas; ``request_id`` is the
    caller's, if it may be. ``understood`` is for handlers to keep what they make of it.
    """

    start_line: RequestStartLine
    headers: HTTPHeaders
    length: int | None
    keep_alive: bool
    expects_continue: bool
    forwarded: str = ""
    request_id: str | None = None
    understood: Understood = field(default_factory=Understood, compare=False)


def is_short(data: bytes, head: Head) -> bool:
    """Whether a head is one that a connection may keep; thousands of them may."""
    return len(data) <= _LONGEST_KNOWN and len(head.headers) <= _MOST_FIELDS_KNOWN


class HeadReader:
    """Reads the heads of one connection; a caller mostly sends the same few again and again."""

    __slots__ = ("_known", "_max_body")

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._known: dict[bytes, Head] = {}

    def read(self, data: bytes) -> Head:
        """As `read_head`; whoever gets a head shares it with others, and leaves it as it is."""
        head = self._known.get(data)
        if head is None:
            head = read_head(data, self._max_body)
            if is_short(data, head):
                if len(self._known) == _MOST_KNOWN:
                    self._known.clear()
                self._known[data] = head
        return head


def take_head(buffer: bytearray) -> bytes | None:
    """Remove the next head from the front of ``buffer``; ``None`` until it is complete.

    Raises `Refused` for one that is too large, or that can never end.
    """
    while buffer.startswith(b"\r\n"):
        del buffer[:2]  # empty lines before a request are skipped (RFC 9112, 2.2)
    end = buffer.find(HEAD_END) + len(HEAD_END)
    if len(HEAD_END) <= end <= MAX_HEAD:
        head = bytes(buffer[:end])
        del buffer[:end]
        return head
    if len(buffer) > MAX_HEAD:
        raise Refused(Refusal.HEADERS_TOO_LARGE)
    if buffer.count(b"\n") != buffer.count(b"\r\n"):
        raise Refused(Refusal.BAD_REQUEST)  # a line that no CR ends will never end the head
    return None


def read_head(data: bytes, max_body: int) -> Head:
    """Reads a head, up to and with its empty line.

    Raises `Refused`; after that nothing more of the connection can be trusted.
    """
    first_line = _FIRST_LINE.match(data)
    if first_line is None:
        raise Refused(Refusal.BAD_REQUEST)
    sink = _Sink()
    parser = httptools.HttpRequestParser(sink)
    try:
        parser.feed_data(data)
    except httptools.HttpParserInvalidMethodError:
        return _without_fields(first_line)
    except httptools.HttpParserUpgrade:
        pass  # none is offered: the request is answered as if it had not asked (RFC 9110, 7.8)
    except httptools.HttpParserError:
        raise Refused(Refusal.BAD_REQUEST) from None
    headers = RequestHeaders(sink.fields)
    start_line = _start_line(first_line)
    _check_size(start_line, sink.fields)
    _check_host(start_line, headers)
    length = _body_length(start_line, headers, max_body)
    expectation = headers.get("Expect", "100-continue").lower()
    if expectation != "100-continue":
        raise Refused(Refusal.EXPECTATION)
    framed = "Content-Length" in headers or length is None
    return Head(
        start_line,
        headers,
        length,
        # Without a length, what a caller may believe to be a body must not be a request.
        keep_alive=_persists(start_line, headers)
        and (framed or start_line.method not in _WITH_BODY),
        expects_continue="Expect" in headers and start_line.version == "HTTP/1.1" and length != 0,
        forwarded=headers.get("X-Forwarded-For", ""),
        request_id=_request_id(headers.get("X-Request-ID", "")),
    )


class _Sink:
    """Takes the header fields that llhttp reads."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))


def _start_line(match: re.Match[bytes]) -> RequestStartLine:
    """The request line, an absolute target cut down to its path (RFC 9112, 3.2.2)."""
    method, target, version = (group.decode("ascii") for group in match.groups())
    origin = _ORIGIN.match(target)
    path = (target[origin.end() :] or "/") if origin else target
    return RequestStartLine(method, path, version)


def _without_fields(match: re.Match[bytes]) -> Head:
    """A request by a method that llhttp does not know: the route answers, then we close."""
    headers = RequestHeaders([(b"Host", b"unknown")])
    return Head(_start_line(match), headers, 0, keep_alive=False, expects_continue=False)


def _request_id(asked: str) -> str | None:
    return asked if _REQUEST_ID.fullmatch(asked) else None


def _persists(start_line: RequestStartLine, headers: HTTPHeaders) -> bool:
    """Whether the caller wants the connection to stay (RFC 9112, 9.3).

    llhttp knows it too, but has forgotten it by the end of a request without a body.
    """
    options = [each.strip().lower() for each in headers.get("Connection", "").split(",")]
    if start_line.version == "HTTP/1.0" and "keep-alive" not in options:
        return False
    return "close" not in options


def _check_size(start_line: RequestStartLine, fields: list[tuple[bytes, bytes]]) -> None:
    if len(start_line.path) > MAX_TARGET:
        raise Refused(Refusal.URI_TOO_LONG)
    if len(fields) > MAX_FIELDS:
        raise Refused(Refusal.HEADERS_TOO_LARGE)


def _check_host(start_line: RequestStartLine, headers: HTTPHeaders) -> None:
    """Exactly one host, which HTTP/1.0 may leave out (RFC 9112, 3.2)."""
    hosts = headers.get_list("Host")
    if not hosts and start_line.version == "HTTP/1.0":
        return
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        raise Refused(Refusal.BAD_REQUEST)


def _body_length(start_line: RequestStartLine, headers: HTTPHeaders, max_body: int) -> int | None:
    """The body's length in bytes, ``None`` for chunks (RFC 9112, 6.3, and stricter).

    llhttp has refused a length that is no number, two of them, and one beside chunks.
    """
    if not _MISSPELT.isdisjoint(headers):
        raise Refused(Refusal.BAD_REQUEST)
    codings = headers.get_list("Transfer-Encoding")
    if codings:
        if codings[0].lower() != "chunked" or len(codings) > 1 or start_line.version == "HTTP/1.0":
            raise Refused(Refusal.BAD_REQUEST)
        return None
    length = int(headers.get("Content-Length", "0"))
    if length > max_body:
        raise Refused(Refusal.BODY_TOO_LARGE)
    return length

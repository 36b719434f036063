"""Parse a request head: llhttp reads it, and ambiguous framing is rejected.

A request is rejected if two readers could see its end in different places (RFC 9112, section 11.2),
even if llhttp accepts it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from http import HTTPStatus

import httptools
from msgspec import Struct
from tornado.httputil import HTTPHeaders, RequestStartLine

from tornado_idv.http.errors import HttpError

MAX_TARGET = 2048
MAX_FIELDS = 100
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) (HTTP/1\.[01])\r\n")
# Some servers read these as the names with a hyphen.
_SMUGGLING_NAMES = ("content_length", "content_encoding", "transfer_length", "transfer_encoding")
# Tornado's pattern, bounded by the length of a name with its port.
_HOST = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+;=:\[\]-]|%[0-9A-Fa-f]{2}){0,261}", re.ASCII)
_ORIGIN = re.compile(r"https?://[^/?#]+", re.IGNORECASE)
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class RequestHead(Struct, frozen=True):
    """The start line, the header fields, and their meaning for framing and connection.

    ``content_length`` is the length of the body in bytes, ``None`` for a chunked body. ``data`` are
    the bytes of the head.
    """

    start_line: RequestStartLine
    headers: HTTPHeaders
    content_length: int | None
    keep_alive: bool
    expects_continue: bool
    data: bytes = b""

    def connection_field(self, *, keep_alive: bool) -> str:
        """Return the ``Connection`` header line of a response with its line break, or nothing."""
        if not keep_alive:
            return "Connection: close\r\n"
        is_http_1_0 = self.start_line.version == "HTTP/1.0"
        return "Connection: keep-alive\r\n" if is_http_1_0 else ""

    __repr__ = object.__repr__  # the target may contain a nickname


def parse_head(data: bytes, max_body: int) -> RequestHead:
    """Parse a head, up to and including its empty line; raises `HttpError`."""
    request_line = _REQUEST_LINE.match(data)
    if request_line is None:
        raise HttpError(HTTPStatus.BAD_REQUEST)
    headers = _Headers()
    parser = httptools.HttpRequestParser(headers)
    try:
        parser.feed_data(data)
    except httptools.HttpParserInvalidMethodError:
        # The route responds to a method unknown to llhttp. Then we close.
        fields = _Headers()
        with suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
            httptools.HttpRequestParser(fields).feed_data(b"GET" + data[request_line.end(1) :])
        fields["Host"] = "unknown"  # it is not checked
        start_line = _start_line(request_line)
        return RequestHead(start_line, fields, 0, keep_alive=False, expects_continue=False)
    except httptools.HttpParserUpgrade:
        pass  # no upgrade is offered: the request for one is ignored (RFC 9110, 7.8)
    except httptools.HttpParserError:
        raise HttpError(HTTPStatus.BAD_REQUEST) from None
    start_line = _start_line(request_line)
    if len(start_line.path) > MAX_TARGET:
        raise HttpError(HTTPStatus.REQUEST_URI_TOO_LONG)
    if data.count(b"\r\n") - 2 > MAX_FIELDS:
        raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    _check_host(start_line, headers)
    length = _content_length(start_line, headers, max_body)
    if headers.get("Expect", "100-continue").lower() != "100-continue":
        raise HttpError(HTTPStatus.EXPECTATION_FAILED)
    has_framing = "Content-Length" in headers or length is None
    return RequestHead(
        start_line,
        headers,
        length,
        # Without framing, bytes that the client sent as a body must not be read as a request.
        keep_alive=_keep_alive(start_line, headers)
        and (has_framing or start_line.method not in _METHODS_WITH_BODY),
        expects_continue="Expect" in headers and start_line.version == "HTTP/1.1" and length != 0,
        data=data,
    )


class _Headers(HTTPHeaders):
    """Header fields from llhttp, without the validation of `add`: llhttp has done it."""

    def on_header(self, field: bytes, value: bytes) -> None:
        name, text = field.decode("ascii"), value.rstrip(b" \t").decode("latin-1")
        if name in self:
            self.add(name, text)
        else:
            self[name] = text


def _start_line(match: re.Match[bytes]) -> RequestStartLine:
    """Return the start line, an absolute target reduced to its path (RFC 9112, 3.2.2)."""
    method, target, version = (group.decode("ascii") for group in match.groups())
    origin = _ORIGIN.match(target)
    path = (target[origin.end() :] or "/") if origin else target
    return RequestStartLine(method, path, version)


def _keep_alive(start_line: RequestStartLine, headers: HTTPHeaders) -> bool:
    """Return whether the client wants a persistent connection (RFC 9112, 9.3).

    llhttp has this flag as well, but resets it by the end of a request without a body.
    """
    options = [each.strip().lower() for each in headers.get("Connection", "").split(",")]
    if start_line.version == "HTTP/1.0" and "keep-alive" not in options:
        return False
    return "close" not in options


def _check_host(start_line: RequestStartLine, headers: HTTPHeaders) -> None:
    """Require exactly one host. HTTP/1.0 may omit it (RFC 9112, 3.2)."""
    hosts = headers.get_list("Host")
    if not hosts and start_line.version == "HTTP/1.0":
        return
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        raise HttpError(HTTPStatus.BAD_REQUEST)


def _content_length(
    start_line: RequestStartLine, headers: HTTPHeaders, max_body: int
) -> int | None:
    """Return the body's length, ``None`` for a chunked body (RFC 9112, 6.3, and stricter).

    llhttp has rejected an invalid length, two lengths, and a length together with chunks.
    """
    if any(name in headers for name in _SMUGGLING_NAMES):
        raise HttpError(HTTPStatus.BAD_REQUEST)
    codings = headers.get_list("Transfer-Encoding")
    if codings:
        if codings[0].lower() != "chunked" or len(codings) > 1 or start_line.version == "HTTP/1.0":
            raise HttpError(HTTPStatus.BAD_REQUEST)
        return None
    length = int(headers.get("Content-Length", "0"))
    if length > max_body:
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return length

"""The parser of request heads. It uses llhttp, and rejects ambiguous framing.

If two servers could disagree about the end of a request (RFC 9112, section 11.2), the request is
rejected, even if llhttp accepts it.
"""

import re
from http import HTTPStatus

import httptools
from msgspec import Struct
from tornado.httputil import HTTPHeaders, RequestStartLine

MAX_TARGET = 2048
MAX_FIELDS = 100
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) (HTTP/1\.[01])\r\n")
# Some servers treat the underscore as a hyphen.
_SMUGGLING_NAMES = ("content_length", "content_encoding", "transfer_length", "transfer_encoding")
# Tornado's pattern, limited to the length of a host name with a port.
_HOST = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+;=:\[\]-]|%[0-9A-Fa-f]{2}){0,261}", re.ASCII)
_ORIGIN = re.compile(r"https?://[^/?#]+", re.IGNORECASE)
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class HttpError(Exception):
    """Raised to reject a request with ``status``. Its connection is then closed.

    After a framing error, the start of the next request is unknown, so further input must not be
    read (RFC 9112, section 9.6).
    """

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class RequestHead(Struct, frozen=True):
    """A parsed request head.

    ``content_length`` is the length of the body in bytes, or ``None`` for a chunked body. ``data``
    contains the bytes of the head.
    """

    start_line: RequestStartLine
    headers: HTTPHeaders
    content_length: int | None
    keep_alive: bool
    expects_continue: bool
    data: bytes = b""

    def connection_field(self, *, keep_alive: bool) -> str:
        """Return the ``Connection`` header line of a response, or ``""`` if it needs none."""
        if not keep_alive:
            return "Connection: close\r\n"
        return "Connection: keep-alive\r\n" if self.start_line.version == "HTTP/1.0" else ""

    __repr__ = object.__repr__  # the target may contain a nickname


def parse_head(data: bytes, max_body: int) -> RequestHead:
    """Parse a head that ends with an empty line. Raises `HttpError`."""
    request_line = _REQUEST_LINE.match(data)
    if request_line is None:
        raise HttpError(HTTPStatus.BAD_REQUEST)
    start_line = _start_line(request_line)
    headers = _Headers()
    parser = httptools.HttpRequestParser(headers)
    try:
        parser.feed_data(data)
    except httptools.HttpParserInvalidMethodError:
        # The application responds to a method unknown to llhttp. Then the connection is closed.
        fields = _Headers()
        try:
            httptools.HttpRequestParser(fields).feed_data(b"GET" + data[request_line.end(1) :])
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:  # a field of a trusted proxy may be in the unread part
            raise HttpError(HTTPStatus.BAD_REQUEST) from None
        fields["Host"] = "unknown"  # the sent value is not checked
        return RequestHead(start_line, fields, 0, keep_alive=False, expects_continue=False)
    except httptools.HttpParserUpgrade:
        pass  # a server without upgrades ignores the field (RFC 9110, 7.8)
    except httptools.HttpParserError:
        raise HttpError(HTTPStatus.BAD_REQUEST) from None
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
        # Without framing, a body sent by the client must not be read as the next request.
        keep_alive=_keep_alive(start_line, headers)
        and (has_framing or start_line.method not in _METHODS_WITH_BODY),
        expects_continue="Expect" in headers and start_line.version == "HTTP/1.1" and length != 0,
        data=data,
    )


class _Headers(HTTPHeaders):
    """Header fields validated by llhttp. `add` validates again, so only repeated names use it."""

    def on_header(self, field: bytes, value: bytes) -> None:
        name, text = field.decode("ascii"), value.rstrip(b" \t").decode("latin-1")
        if name in self:
            self.add(name, text)
        else:
            self[name] = text


def _start_line(match: re.Match[bytes]) -> RequestStartLine:
    """Return the start line. An absolute target is reduced to its path (RFC 9112, 3.2.2)."""
    method, target, version = (group.decode("ascii") for group in match.groups())
    origin = _ORIGIN.match(target)
    path = (target[origin.end() :] or "/") if origin else target
    return RequestStartLine(method, path, version)


def _keep_alive(start_line: RequestStartLine, headers: HTTPHeaders) -> bool:
    """Return whether the client permits a persistent connection (RFC 9112, 9.3).

    The flag of llhttp cannot be used, because it is reset at the end of a request without a body.
    """
    options = [each.strip().lower() for each in headers.get("Connection", "").split(",")]
    if start_line.version == "HTTP/1.0" and "keep-alive" not in options:
        return False
    return "close" not in options


def _check_host(start_line: RequestStartLine, headers: HTTPHeaders) -> None:
    """Raise `HttpError` unless there is one valid host. HTTP/1.0 may omit it (RFC 9112, 3.2)."""
    hosts = headers.get_list("Host")
    if not hosts and start_line.version == "HTTP/1.0":
        return
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        raise HttpError(HTTPStatus.BAD_REQUEST)


def _content_length(
    start_line: RequestStartLine, headers: HTTPHeaders, max_body: int
) -> int | None:
    """Return the length of the body, or ``None`` for a chunked body.

    The rules are stricter than RFC 9112, section 6.3. llhttp has already rejected an invalid
    length, two lengths, and a length together with chunks.
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

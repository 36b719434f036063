"""What is wrong with a request before any handler may see it.

One request in, one answer out: a request whose end two readers could see in
different places (RFC 9112, 11.2) is refused and its connection closed.
"""

from __future__ import annotations

import re

from tornado.httputil import HTTPHeaders, RequestStartLine

from tornado_idv.web.refusals import Refusal

MAX_TARGET = 2048
MAX_FIELDS = 100
_FRAMING = re.compile(r"(?:content|transfer)_(?:length|encoding)", re.IGNORECASE)
_LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)
_ORIGIN = re.compile(r"https?://[^/?#]+", re.IGNORECASE)


def framing_refusal(
    start_line: RequestStartLine, headers: HTTPHeaders, max_body: int
) -> Refusal | None:
    """The refusal that a request line and its headers earn, if any."""
    fields = list(headers.get_all())
    if len(start_line.path) > MAX_TARGET:
        return Refusal.URI_TOO_LONG
    if len(fields) > MAX_FIELDS:
        return Refusal.HEADERS_TOO_LARGE
    if _is_ambiguous(start_line, headers) or any(_FRAMING.fullmatch(name) for name, _ in fields):
        return Refusal.BAD_REQUEST
    if int(headers.get("Content-Length", "0")) > max_body:
        return Refusal.BODY_TOO_LARGE
    if headers.get("Expect", "100-continue").lower() != "100-continue":
        return Refusal.EXPECTATION
    return None


def origin_form(target: str) -> str:
    """The target as a path; an absolute-form one names our own origin (RFC 9112, 3.2.2)."""
    match = _ORIGIN.match(target)
    return (target[match.end() :] or "/") if match else target


def _is_ambiguous(start_line: RequestStartLine, headers: HTTPHeaders) -> bool:
    coding, length = headers.get("Transfer-Encoding"), headers.get("Content-Length")
    return (
        start_line.version not in ("HTTP/1.0", "HTTP/1.1")
        or not (start_line.path.startswith("/") or start_line.path == "*")
        or len(headers.get_list("Host")) > 1
        or (start_line.version == "HTTP/1.1" and "Host" not in headers)
        or (length is not None and (coding is not None or not _LENGTH.fullmatch(length)))
        or (coding is not None and coding.lower() != "chunked")
        or (coding is not None and start_line.version == "HTTP/1.0")
    )

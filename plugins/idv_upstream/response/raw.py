"""Received responses: their size limits, decompression, JSON and dates."""

import re
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from multidict import MultiMapping

from tornado_idv import Broken, Unavailable, strict_json

MAX_BODY = 64 * 1024
"""Maximum size of a body in bytes, before and after decompression. A longer body is `Broken`."""

TOO_LONG = f"a response of more than {MAX_BODY} bytes"
_CORRUPT = "a compressed response that is damaged"

MAX_RETRY_AFTER = 60.0
"""Maximum pause in seconds that an upstream can demand by ``Retry-After``."""

_SECONDS = re.compile(r"[0-9]{1,9}", re.ASCII)


class Response(NamedTuple):
    """A response of an upstream. ``body`` is decompressed. An unread body is empty."""

    status: int
    headers: MultiMapping[str]
    """The headers. Their names are case-insensitive."""
    body: bytes
    is_certain: bool = True
    """True if an echoed id or a new connection proves that the response belongs to its request."""


def decode_body(body: bytes, headers: MultiMapping[str]) -> bytes:
    """Return the decompressed body. Raises `Broken` for a body that is invalid or too long.

    Raises `Unavailable` for a body that may be incomplete.
    """
    if not body and not ("Content-Length" in headers or "Transfer-Encoding" in headers):
        raise Unavailable("the response was cut short")
    if len(body) > MAX_BODY:
        raise Broken(TOO_LONG)
    coding = headers.get("Content-Encoding", "identity").lower()
    if coding == "identity":
        return body
    if coding not in {"gzip", "x-gzip", "deflate"}:
        raise Broken("a compressed response of an unsupported kind")
    stream = zlib.decompressobj(32 + zlib.MAX_WBITS)  # detects gzip or zlib by the header
    try:
        content = stream.decompress(body, MAX_BODY + 1)
    except zlib.error:
        raise Broken(_CORRUPT) from None
    if len(content) > MAX_BODY:
        raise Broken(TOO_LONG)
    if not stream.eof or stream.unused_data:
        raise Broken(_CORRUPT)
    return content


def decode_json(body: bytes) -> Any:
    """Return the JSON document in a body. Raises `Broken` for invalid JSON.

    A string may contain a lone surrogate, because JSON has escape sequences for surrogates.
    """
    try:
        return strict_json.loads(body, max_depth=128)
    except ValueError:
        raise Broken("a response that is not valid JSON") from None


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of ``Retry-After`` (RFC 9110, section 10.2.3), or 0 without a value."""
    value = headers.get("Retry-After", "")
    if _SECONDS.fullmatch(value):
        return float(value)
    until = _date(value)
    return 0.0 if until is None else max((until - sent_at(headers)).total_seconds(), 0.0)


def sent_at(headers: Mapping[str, str]) -> datetime:
    """Return the time in the header ``Date``. Without a valid ``Date``, return the current time."""
    return _date(headers.get("Date", "")) or datetime.now(UTC)


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)

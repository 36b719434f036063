"""The body of an answer: bounded, whole, and decompressed."""

from __future__ import annotations

import zlib

from multidict import MultiMapping

from tornado_idv import Broken, Unavailable

MAX_ANSWER = 64 * 1024
"""The most bytes of an answer, decompressed or not, that are read; a longer one is `Broken`."""

_TOO_LONG = f"an answer of more than {MAX_ANSWER} bytes"
_DAMAGED = "a compressed answer that is damaged"


def plain(body: bytes, headers: MultiMapping[str]) -> bytes:
    """What was said, of a body that was read up to one byte more than it may have.

    Raises `Broken`, or `Unavailable` if nobody can tell that this is all of it.
    """
    if not body and not _has_end(headers):
        raise Unavailable("the answer was cut short")
    _check_length(body)
    if "Content-Encoding" not in headers:
        return body
    coding = headers["Content-Encoding"].strip().lower()
    return body if coding == "identity" else _decompressed(body, coding)


def _has_end(headers: MultiMapping[str]) -> bool:
    """Whether the answer says where it ends; else a lost connection looks like its end."""
    return "Content-Length" in headers or "Transfer-Encoding" in headers


def _check_length(body: bytes) -> None:
    if len(body) > MAX_ANSWER:
        raise Broken(_TOO_LONG)


def _decompressed(body: bytes, coding: str) -> bytes:
    """Undoes what we had asked not to be done; no bomb comes out larger than an answer may be."""
    if coding not in {"gzip", "x-gzip", "deflate"}:
        raise Broken("a compressed answer of a kind that is not understood")
    stream = zlib.decompressobj(_window(body, coding))
    try:
        content = stream.decompress(body, MAX_ANSWER + 1)
    except zlib.error:
        raise Broken(_DAMAGED) from None
    _check_length(content)
    if not stream.eof or stream.unused_data:
        raise Broken(_DAMAGED)
    return content


def _window(body: bytes, coding: str) -> int:
    """How zlib is to read it: what is called deflate comes with a head, or wrongly without."""
    if coding != "deflate":
        return 16 + zlib.MAX_WBITS
    has_head = body[:1] != b"" and body[0] & 15 == zlib.DEFLATED
    return zlib.MAX_WBITS if has_head and int.from_bytes(body[:2]) % 31 == 0 else -zlib.MAX_WBITS

"""Strict JSON (RFC 8259): one document, no member named twice, no NaN, bounded nesting.

The time to accept or reject a document is linear in its size, whatever it holds: it is
parsed on the event loop, and senders are not trusted.
"""

from __future__ import annotations

import json
import math
from itertools import accumulate
from typing import Any, NoReturn

# Brackets as steps of the depth: signed bytes, 1 and -1. Everything else is deleted.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


class Number(str):
    """A number in its original spelling. ``type(value) is str`` is true for JSON strings alone."""

    __slots__ = ()


def loads(document: bytes | str, *, max_depth: int = 256, keep_numbers: bool = False) -> Any:
    """Return the value of the one JSON document; bytes are strict UTF-8 without a BOM.

    Arrays and objects may be nested ``max_depth`` deep. With ``keep_numbers``, numbers are
    returned as `Number`; otherwise as ``int`` or ``float``, and a number that is too large for a
    ``float``, or has more digits than Python converts, is an error. Strings may contain a lone
    surrogate, since JSON can escape it; see `is_unicode`.

    Raises `ValueError`. Its text and attributes may contain parts of the document.
    """
    text = document if isinstance(document, str) else document.decode("utf-8")
    text = text.strip(" \t\n\r")  # the white space of JSON; `raw_decode` skips none
    if len(text) > max_depth:  # a shorter text cannot be nested deeper
        _check_depth(text, max_depth)
    decoder = _NUMBER_KEEPER if keep_numbers else _DECODER
    try:
        value, end = decoder.raw_decode(text)
    except RecursionError:
        raise ValueError("nested too deep for this call stack") from None
    if end < len(text):
        raise ValueError("more than one document")
    return value


def is_unicode(text: str) -> bool:
    """Return whether ``text`` can be encoded in UTF-8: it holds no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_depth(text: str, max_depth: int) -> None:
    """Raise `ValueError` for deep nesting: the limit of the parser itself varies by version."""
    if text.count("[") + text.count("{") <= max_depth:
        return
    # Without escapes, every second part between quotes is outside of strings. A regular
    # expression for strings is quadratic for an unterminated one: it retries at each quote.
    parts = text.replace("\\\\", "").replace('\\"', "").split('"')
    outside = "".join(parts[::2]).encode("ascii", "replace")
    steps = memoryview(outside.translate(_STEPS, _NO_BRACKETS)).cast("b")
    if max(accumulate(steps), default=0) > max_depth:
        raise ValueError("nested too deep")


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(members)
    if len(record) < len(members):
        raise ValueError("duplicate member")
    return record


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError("a number that is too large")
    return value


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_reject, parse_float=_finite)
_NUMBER_KEEPER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_reject, parse_float=Number, parse_int=Number
)

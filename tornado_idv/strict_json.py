"""A strict JSON parser (RFC 8259): no duplicate members, no NaN, limited nesting.

The time to accept or reject a document is linear in its size, because untrusted documents are
parsed on the event loop.
"""

import json
import math
from itertools import accumulate
from typing import Any, NoReturn

# Changes of the depth by brackets, 1 and -1 as signed bytes. All other characters are deleted.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


class Number(str):
    """A JSON number in its original spelling. A JSON string is a ``str``, but not a `Number`."""

    __slots__ = ()


def loads(document: bytes | str, *, max_depth: int = 256, keep_numbers: bool = False) -> Any:
    """Return the value of a JSON document. Bytes must be UTF-8 without a byte order mark.

    Arrays and objects may be nested up to ``max_depth`` levels. With ``keep_numbers``, numbers are
    returned as `Number`. Otherwise they are returned as ``int`` or ``float``, and a number that
    Python cannot convert, because it is too large or too long, is an error. Strings may contain a
    lone surrogate, because JSON can escape it; see `is_unicode`.

    Raises `ValueError`. Its text and attributes may contain parts of the document.
    """
    text = document if isinstance(document, str) else document.decode("utf-8")
    text = text.strip(" \t\n\r")  # `raw_decode` does not skip white space
    if len(text) > max_depth:  # a shorter text cannot have more levels
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
    """Return whether ``text`` can be encoded in UTF-8, that is, contains no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_depth(text: str, max_depth: int) -> None:
    """Raise `ValueError` for too deep nesting, because Python's limit differs between versions."""
    if text.count("[") + text.count("{") <= max_depth:
        return
    # After the removal of escapes, every second part between quotes is outside of strings. A
    # regular expression would take quadratic time for an unterminated string, by retries at each
    # quote.
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

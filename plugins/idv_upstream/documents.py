"""JSON from another service, read strictly; it knows nothing of what a document means."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from tornado_idv import Broken

_BLANKS = " \t\n\r"
_MAX_DEPTH = 128
_TEXT_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}


def decode(body: bytes) -> Any:
    """The one JSON document in ``body``; raises `Broken` if it is not valid.

    It is strict UTF-8 without a byte order mark; no member is named twice, and no number
    is NaN or infinite. Text may still hold half a surrogate pair, as JSON can escape one.
    """
    try:
        return parse(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Broken("an answer that is not valid JSON") from None


def parse(text: str) -> Any:
    """The one JSON document in ``text``; raises `ValueError` if it is not valid."""
    text = text.strip(_BLANKS)
    if len(text) > _MAX_DEPTH:
        _check_depth(text)
    document, end = _DECODER.raw_decode(text)
    if end < len(text):
        raise ValueError("more than one document")
    return document


def is_unicode(text: str) -> bool:
    """Whether ``text`` can be written in UTF-8; half a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_depth(text: str) -> None:
    """Bounds the nesting: how deep Python itself can go depends on who calls it."""
    if text.count("[") + text.count("{") <= _MAX_DEPTH:
        return
    depth = 0
    for found in _TEXT_OR_BRACKET.findall(text):
        depth += _STEP.get(found, 0)
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deep")


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is named twice")
    return members


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError("a number that is too large")
    return value


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_named_once, parse_constant=_refuse, parse_float=_finite
)

"""JSON of the contract: the field of a request body, and response bodies."""

from __future__ import annotations

import json
import re
from typing import Any

from tornado_idv.errors import InvalidFormat
from tornado_idv.identifiers import Identifiers
from tornado_idv.model import User
from tornado_idv.web.errors import ApiError

_BLANKS = " \t\n\r"
_MAX_DEPTH = 256
_TEXT_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}


def parse_field(body: bytes, name: str) -> str:
    """Return the text member ``name`` of the one JSON object in ``body``.

    Strict UTF-8 and RFC 8259; no member twice, no NaN, no byte order mark. Other
    members are ignored, whatever they hold, so numbers stay text (an integer of
    5,000 digits is an error to Python). Raises `InvalidFormat`.
    """
    try:
        record = _decode(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise InvalidFormat("not a JSON object") from None
    value = record.get(name) if isinstance(record, dict) else None
    if type(value) is not str:
        raise InvalidFormat(f'no text member "{name}"')
    return value


def encode_user(user: User | None, identifiers: Identifiers) -> bytes:
    """Return the response body for a user, or for "not found"."""
    if user is None:
        return ApiError.NOT_FOUND.body
    return (
        f'{{"status":"ok","plan":{_quoted(user.plan)},"card_number":{_quoted(user.card_number)}'
        f',"nickname":{_quoted(f"@{user.nickname}")}'
        f',"profile_url":{_quoted(identifiers.profile_url(user))}}}'
    ).encode()


def _decode(text: str) -> Any:
    text = text.strip(_BLANKS)
    if len(text) > _MAX_DEPTH:
        _check_depth(text)
    record, end = _DECODER.raw_decode(text)
    if end < len(text):
        raise ValueError("more than one value")
    return record


def _check_depth(text: str) -> None:
    """Raises `ValueError` for nesting without end; how deep Python itself goes has varied."""
    if text.count("[") + text.count("{") <= _MAX_DEPTH:
        return
    depth = 0
    for token in _TEXT_OR_BRACKET.findall(text):
        depth += _STEP.get(token, 0)
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deep")


class _Number(str):
    """A number as written: not text, though it is held as such."""

    __slots__ = ()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member named twice")
    return members


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_quoted = json.encoder.encode_basestring  # what an encoder with ensure_ascii=False calls
_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_Number, parse_int=_Number
)

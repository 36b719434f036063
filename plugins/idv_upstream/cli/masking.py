"""Masks secrets in what ``upstream try`` prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from json import dumps
from typing import Any
from urllib.parse import quote, unquote

from msgspec.structs import replace

from idv_upstream.request.template import Request
from idv_upstream.transport.credentials import MASK
from tornado_idv import strict_json

_SECRET_NAME = re.compile("auth|key|token|secret|cookie|passw|pwd", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


def mask_request(request: Request) -> Request:
    """Mask the values in a request that are named like a secret."""
    path, mark, query = request.url.partition("?")
    headers = {name: MASK if _is_secret(name) else each for name, each in request.headers.items()}
    body = request.body
    return replace(
        request,
        url=path + mark + _mask_pairs(query),
        headers=headers,
        body=None if body is None else _mask_body(body.decode()).encode(),
    )


def _mask_body(body: str) -> str:
    try:
        return dumps(_mask_members(strict_json.loads(body)))
    except ValueError:
        return _mask_pairs(body)


def _mask_pairs(pairs: str) -> str:
    """Mask in a query or a form."""
    return "&".join(
        f"{name}={MASK}" if equals and _is_secret(name) else name + equals + value
        for name, equals, value in (pair.partition("=") for pair in pairs.split("&"))
    )


def _mask_members(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: MASK if _is_secret(name) else _mask_members(member)
            for name, member in value.items()
        }
    return [_mask_members(item) for item in value] if isinstance(value, list) else value


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(unquote(name)) is not None


class Masker:
    """Masks given values wherever they appear in a text, plain or encoded.

    A URL, a form or JSON may hold a value with any of its characters escaped.
    """

    def __init__(self, values: Iterable[str]) -> None:
        spellings = {spelling for value in values for spelling in _spellings(value)}
        longest_first = sorted(spellings - {""}, key=lambda text: (-len(text), text))
        patterns = ("".join(map(_any_escape, text)) for text in longest_first)
        self._pattern = re.compile("|".join(patterns) or "(?!)")

    def __call__(self, value: Any) -> Any:
        """Return the JSON value with all texts masked, at any depth."""
        if isinstance(value, str):
            return self._pattern.sub(MASK, value)
        if isinstance(value, Mapping):
            return {self(name): self(member) for name, member in value.items()}
        if isinstance(value, list):
            return [self(item) for item in value]
        if type(value) in (int, float) and self._pattern.search(dumps(value)):
            return MASK
        return value


def _spellings(value: str) -> Iterator[str]:
    """The value as it is, and what a request template makes of it."""
    yield value
    yield unquote(value)
    with suppress(ValueError):
        yield from _texts(strict_json.loads(value, keep_numbers=True))
    # A value with placeholders is printed with something in their place.
    for part in _PLACEHOLDER.split(value.replace("{{", "\0").replace("}}", "\1")):
        if any(map(str.isalnum, part)):
            yield part.replace("\0", "{").replace("\1", "}")


def _texts(document: Any) -> Iterator[str]:
    """The texts and numbers in JSON, which is printed with other blanks between them."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict | list):
        members = document.values() if isinstance(document, dict) else document
        for member in members:
            yield from _texts(member)


def _any_escape(character: str) -> str:
    """A pattern for the character, itself, percent-encoded or as JSON escapes it."""
    if character.isascii() and character.isalnum():
        return character
    escapes = {quote(character, safe="", errors="replace"), dumps(character)[1:-1]}
    escapes.add(f"\\u{ord(character):04x}")
    if character == " ":
        escapes.add("+")
    elif character == "/":
        escapes.add(r"\/")
    alternatives = "|".join(f"(?i:{re.escape(escape)})" for escape in sorted(escapes - {character}))
    return f"(?:{alternatives}|{re.escape(character)})"

"""Masking of secrets in output for operators."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from json import dumps
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from tornado_idv import strict_json

_MORE_ESCAPES = {" ": "+", "/": r"\/"}
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


class Masker:
    """A function that masks given secrets anywhere in a text or document.

    It also finds a secret in a URL, a form or JSON with any of its characters escaped.
    """

    MASK: ClassVar[str] = "***"
    """The replacement for a secret."""

    def __init__(self, values: Iterable[str]) -> None:
        spellings = {spelling for value in values for spelling in _spellings(value)}
        longest_first = sorted(spellings - {""}, key=lambda text: (-len(text), text))
        patterns = ("".join(map(_any_escape, text)) for text in longest_first)
        self._pattern = re.compile("|".join(patterns) or "(?!)")

    def __call__(self, value: Any) -> Any:
        """Return the value as JSON data, with the secrets masked at any depth."""
        if isinstance(value, bytes):
            value = value.decode(errors="backslashreplace")
        if isinstance(value, str):
            return self._pattern.sub(self.MASK, value)
        if isinstance(value, Mapping):
            return {str(self(name)): self(member) for name, member in value.items()}
        if isinstance(value, list | tuple):
            return [self(item) for item in value]
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return self.MASK if self._pattern.search(dumps(value)) else value
        return self(repr(value))


def _spellings(value: str) -> Iterator[str]:
    """Yield a secret, and the forms that it may have in a request."""
    yield value
    yield unquote(value)
    with suppress(ValueError):
        yield from _texts(strict_json.loads(value, keep_numbers=True))
    # If the secret is a template, a request contains only the parts between its placeholders.
    for part in _PLACEHOLDER.split(value.replace("{{", "\0").replace("}}", "\1")):
        if any(map(str.isalnum, part)):
            yield part.replace("\0", "{").replace("\1", "}")


def _texts(document: Any) -> Iterator[str]:
    """Yield the texts and numbers in a JSON secret, because a request may reformat the JSON."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict | list):
        members = document.values() if isinstance(document, dict) else document
        for member in members:
            yield from _texts(member)


def _any_escape(character: str) -> str:
    """Return a pattern that matches a character in plain, percent-encoded or JSON-escaped form."""
    if character.isascii() and character.isalnum():
        return character
    escapes = {quote(character, safe="", errors="replace"), dumps(character)[1:-1]}
    escapes |= {f"\\u{ord(character):04x}", _MORE_ESCAPES.get(character, character)}
    alternatives = "|".join(f"(?i:{re.escape(escape)})" for escape in sorted(escapes - {character}))
    return f"(?:{alternatives}|{re.escape(character)})"

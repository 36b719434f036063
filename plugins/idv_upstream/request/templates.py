"""Texts with placeholders: parsed once, rendered for each query.

``{name}`` is a placeholder; ``{{`` and ``}}`` stand for braces. A value between quotes is
escaped so that it cannot end them: between double quotes as in a JSON string (SCIM,
GraphQL), between single quotes by doubling them (OData). `encoding` adds the encoding of
the position in the request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring

_BRACES = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")
_SLOT = "\0"  # stands for a placeholder while quotes are parsed
_QUOTED = re.compile(r""" "(?:[^"\\]|\\.)*" | '(?:[^']|'')*' """, re.DOTALL | re.VERBOSE)
# Text within quotes that would need a second layer of escaping, or undo the first.
_AMBIGUOUS = {
    '"': re.compile(r'(?:^|[^\\])(?:\\\\)*\\["\0]'),
    "'": re.compile("''"),
}
# Neither changes what the other escapes, so their order does not matter.
_ESCAPES: Mapping[str, Callable[[str], str]] = {
    '"': lambda value: encode_basestring(value)[1:-1],
    "'": lambda value: value.replace("'", "''"),
}


Encode = Callable[[str], str]
"""Encodes text for a position in a request, each character independently of the others."""


def _read(match: re.Match[str], names: Sequence[str], found: list[str]) -> str:
    token, column = match[0], match.start() + 1
    if token in ("{{", "}}"):
        return token[0]
    if len(token) == 1:
        raise ValueError(f"a lone {token} at column {column}; write {token * 2} for a brace")
    if token[1:-1] not in names:
        raise ValueError(_unknown(column, names))
    found.append(token[1:-1])
    return _SLOT


def _unknown(column: int, names: Sequence[str]) -> str:
    # The name itself is not repeated: text in braces may be a secret.
    if not names:
        return f"a placeholder at column {column}; only values can have one"
    known = ", ".join(f"{{{name}}}" for name in names)
    return f"an unknown placeholder at column {column}; here it may be {known}"


def _quotes(shown: str, around: str) -> Iterator[str]:
    """The quotes around each placeholder."""
    done = 0
    for match in _QUOTED.finditer(shown):
        yield from [around] * shown.count(_SLOT, done, match.start())
        quote, inside = match[0][0], match[0][1:-1]
        if _SLOT in inside and _AMBIGUOUS[quote].search(inside):
            raise ValueError(
                "a placeholder cannot stand between quotes that have escaped quotes within"
            )
        yield from _quotes(inside, quote + around)
        done = match.end()
    yield from [around] * shown.count(_SLOT, done)


@dataclass(frozen=True, slots=True)
class Placeholders:
    """The names of placeholders, and the prefix of the first profile site.

    All but ``profile_site`` stand for the value of the query; ``profile_url`` has the prefix
    of every profile URL in front.
    """

    names: Sequence[str]
    profile_site: str = "x"

    def compile(self, text: str, value: Encode, literal: Encode) -> Compiled:
        """Compile ``text``; ``value`` encodes values, ``literal`` the text around them.

        Raises `ValueError` as ``literal`` does, for an unknown placeholder, and for one between
        quotes that it cannot be escaped for.
        """
        if _SLOT in text:
            raise ValueError("a NUL character cannot be sent")
        found: list[str] = []
        shown = _BRACES.sub(lambda match: _read(match, self.names, found), text)
        first, *literals = shown.split(_SLOT)
        parts: list[Compiled | str] = [literal(first)]
        for name, quotes, behind in zip(found, _quotes(shown, ""), literals, strict=True):
            parts += [self._slot(name, _in_quotes(quotes, value)), literal(behind)]
        return Compiled.joined(*parts)

    def _slot(self, name: str, encode: Encode) -> Compiled:
        if name == "profile_site":
            return Compiled.joined(encode(self.profile_site))
        before = encode(f"{self.profile_site}/m/") if name == "profile_url" else ""
        return Compiled.joined(before, Compiled("%s", [encode]))


@dataclass(frozen=True, slots=True, repr=False)
class Compiled:
    """A compiled text: a ``%`` format, and how the value is encoded for each of its slots.

    Without slots, the text is a constant.
    """

    pattern: str
    slots: Sequence[Encode] = ()

    @classmethod
    def joined(cls, *parts: Compiled | str) -> Compiled:
        """Concatenate compiled texts and constants."""
        compiled = [
            cls(part.replace("%", "%%")) if isinstance(part, str) else part for part in parts
        ]
        slots = [slot for part in compiled for slot in part.slots]
        return cls("".join(part.pattern for part in compiled), slots)

    def render(self, value: str) -> str:
        """Return the text with ``value`` in its slots."""
        return self.pattern % tuple([encode(value) for encode in self.slots])


def _in_quotes(quotes: str, encode: Encode) -> Encode:
    if not quotes:
        return encode
    escapes = [_ESCAPES[quote] for quote in quotes]

    def encoded(value: str) -> str:
        for escape in escapes:
            value = escape(value)
        return encode(value)

    return encoded

"""Texts with placeholders, read once and filled often.

``{name}`` is a placeholder; ``{{`` and ``}}`` stand for braces. A value that stands between
quotes is escaped so that it cannot end them: between double quotes like the inside of a
JSON string (SCIM, GraphQL), between single ones by doubling them (OData). How a value is
written at its place beyond that is the word of whoever fills the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring

_BRACES = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")
_SLOT = "\0"  # stands for a placeholder while quotes are looked for
_QUOTED = re.compile(r""" "(?:[^"\\]|\\.)*" | '(?:[^']|'')*' """, re.DOTALL | re.VERBOSE)
# What within quotes would need a second layer of escaping, or undo the first.
_ENTANGLED = {
    '"': re.compile(r'(?:^|[^\\])(?:\\\\)*\\["\0]'),
    "'": re.compile("''"),
}
_ESCAPES: Mapping[str, Callable[[str], str]] = {
    '"': lambda value: encode_basestring(value)[1:-1],
    "'": lambda value: value.replace("'", "''"),
}


@dataclass(frozen=True, slots=True)
class Slot:
    """A placeholder, and the quotes it stands between, the innermost first."""

    name: str
    quotes: str = ""


Pieces = Sequence[str | Slot]
"""A text in the order of its parts."""
Encode = Callable[[str], str]
"""How text is written at its place: each character by itself, whatever stands beside it."""


def parse(text: str, names: Sequence[str]) -> Pieces:
    """The pieces of ``text``.

    Raises `ValueError` for a placeholder that is none of ``names``, and for one between
    quotes that it cannot be kept in.
    """
    if _SLOT in text:
        raise ValueError("a NUL character cannot be sent")
    found: list[str] = []
    shown = _BRACES.sub(lambda match: _read(match, names, found), text)
    literals = shown.split(_SLOT)
    slots = [Slot(name, quotes) for name, quotes in zip(found, _quotes(shown, ""), strict=True)]
    pieces: list[str | Slot] = [literals[0]]
    for slot, literal in zip(slots, literals[1:], strict=True):
        pieces += [slot, literal]
    return [piece for piece in pieces if piece]


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
    # The name itself is not repeated: whatever stands in braces may be a secret.
    if not names:
        return f"a placeholder at column {column}; only values can have one"
    known = ", ".join(f"{{{name}}}" for name in names)
    return f"an unknown placeholder at column {column}; here it may be {known}"


def _quotes(shown: str, around: str) -> Iterator[str]:
    """The quotes that each placeholder stands between."""
    done = 0
    for match in _QUOTED.finditer(shown):
        yield from [around] * shown.count(_SLOT, done, match.start())
        quote, inside = match[0][0], match[0][1:-1]
        if _SLOT in inside and _ENTANGLED[quote].search(inside):
            raise ValueError(
                "a placeholder cannot stand between quotes that have escaped quotes within"
            )
        yield from _quotes(inside, quote + around)
        done = match.end()
    yield from [around] * shown.count(_SLOT, done)


@dataclass(frozen=True, slots=True)
class Placeholders:
    """The names that may be filled, and the values of those that never change."""

    names: Sequence[str]
    fixed: Mapping[str, str]

    def filling(self, text: str, value: Encode, literal: Encode) -> Filling:
        """Makes ``text`` ready; raises `ValueError` as `parse` does, or as ``literal`` does.

        ``value`` writes the values, ``literal`` writes what stands around them.
        """
        pattern, slots = "", []
        for piece in parse(text, self.names):
            if isinstance(piece, str):
                pattern += _kept(literal(piece))
                continue
            encode = _in_quotes(piece.quotes, value)
            if piece.name in self.fixed:
                pattern += _kept(encode(self.fixed[piece.name]))
            else:
                pattern += "%s"
                slots.append((piece.name, encode))
        return Filling(pattern, slots)


@dataclass(frozen=True, slots=True)
class Filling:
    """A text ready to be filled with values: they are put into ``pattern`` by ``%``."""

    pattern: str
    slots: Sequence[tuple[str, Encode]] = ()

    @classmethod
    def joined(cls, *parts: Filling | str) -> Filling:
        """One text out of several, to be filled or as they are."""
        fillings = [cls(_kept(part)) if isinstance(part, str) else part for part in parts]
        slots = [slot for filling in fillings for slot in filling.slots]
        return cls("".join(filling.pattern for filling in fillings), slots)

    def filled(self, values: Mapping[str, str]) -> str:
        """The text with ``values`` at their places."""
        return self.pattern % tuple([encode(values[name]) for name, encode in self.slots])

    @property
    def names(self) -> frozenset[str]:
        """The names of the values it is filled with; without any it is always the same."""
        return frozenset(name for name, _ in self.slots)


def _kept(text: str) -> str:
    return text.replace("%", "%%")


def _in_quotes(quotes: str, encode: Encode) -> Encode:
    if not quotes:
        return encode
    escapes = [_ESCAPES[quote] for quote in quotes]

    def encoded(value: str) -> str:
        for escape in escapes:
            value = escape(value)
        return encode(value)

    return encoded

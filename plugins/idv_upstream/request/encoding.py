"""Texts with placeholders, whose values are encoded so that they cannot reach beyond them.

``{name}`` is a placeholder; ``{{`` and ``}}`` stand for braces. A value between quotes is
escaped so that it cannot end them: between double quotes as in a JSON string (SCIM,
GraphQL), between single quotes by doubling them (OData). Then it is encoded for the position
in the request.

Everything here is compiled once, when the configuration is read, and rendered for each query;
errors are raised as `TemplateError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any
from urllib.parse import quote

from idv_upstream.request.url import Url
from tornado_idv import strict_json

MAX_JSON_DEPTH = 128
_DOT_SEGMENT = re.compile(r"(?:/|%2F|%5C)\.\.?(?=[/;]|%2F|%5C|%3B|%3F|%23|%00|$)", re.IGNORECASE)
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ENCODED_DOT = re.compile("%2e", re.IGNORECASE)
_ENCODED_QUOTE = re.compile("%(?:22|27|5C)", re.IGNORECASE)
_UNRESERVED = re.compile("[A-Za-z0-9._~-]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Blanks at the ends are rejected: recipients strip them (RFC 9110, section 5.5).
_HEADER_VALUE = re.compile("(?:[!-~](?:[ -~]*[!-~])?)?")
# Set by the client, or by a credential.
_RESERVED_HEADER = re.compile(
    "accept-encoding|authorization|connection|content-length|expect|host|keep-alive|"
    "proxy-.*|te|trailer|transfer-encoding|upgrade",
    re.IGNORECASE,
)
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
        # The name itself is not repeated: text in braces may be a secret.
        if not names:
            raise ValueError(f"a placeholder at column {column}; only values can have one")
        known = ", ".join(f"{{{name}}}" for name in names)
        raise ValueError(f"an unknown placeholder at column {column}; here it may be {known}")
    found.append(token[1:-1])
    return _SLOT


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


_NO_PLACEHOLDERS = Placeholders(())


def is_reserved(header: str) -> bool:
    """Return whether a header is set by the client, or by a credential."""
    return _RESERVED_HEADER.fullmatch(header) is not None


class TemplateError(ValueError):
    """A text that cannot be compiled; ``steps`` lead to it in the options."""

    def __init__(self, message: str, *steps: str | int) -> None:
        super().__init__(message)
        self.steps = steps


def compile_path(url: str, known: Placeholders) -> Compiled:
    """Compile a URL without its query."""
    parts = Url.parse(url)
    path = Compiled.joined(parts.origin, _url_part(parts.path, known, _as_path))
    if has_dot_segment(path.render("x")):
        raise ValueError("a path cannot have segments of dots")
    return path


def has_dot_segment(path: str) -> bool:
    """Return whether a server may resolve a segment of the path as ``.`` or ``..``.

    Encoded slashes count too, since some servers decode a path before they split it, and
    some read a segment only up to a semicolon.
    """
    return "." in path and _DOT_SEGMENT.search(path) is not None


def compile_url_query(url: str, known: Placeholders) -> list[Compiled]:
    """Compile the parameters in the query of ``url``."""
    query = Url.parse(url).query
    return [_url_parameter(pair, known) for pair in query.split("&")] if query else []


def compile_parameters(members: Mapping[str, str], known: Placeholders) -> list[Compiled]:
    """Compile the parameters of a query or a form."""
    return [_parameter(name, text, known) for name, text in members.items()]


def compile_headers(members: Mapping[str, str], known: Placeholders) -> dict[str, Compiled]:
    """Compile the values of headers, by name."""
    return {name: _header(name, text, known) for name, text in members.items()}


def is_header_value(text: str) -> bool:
    """Return whether ``text`` is received as it is sent."""
    return _HEADER_VALUE.fullmatch(text) is not None


def compile_json(body: Any, known: Placeholders) -> Compiled:
    """Compile a JSON body: a tree whose strings have placeholders, or its text."""
    if not isinstance(body, str):
        return _json_value(body, known)
    try:
        document = strict_json.loads(body, max_depth=MAX_JSON_DEPTH)
    except ValueError:
        raise ValueError(
            "not JSON; write a mapping, a list, or JSON within single quotes"
        ) from None
    return _json_value(document, known)


def join_parameters(before: str, parameters: Sequence[Compiled]) -> Compiled:
    """Join parameters to a query or a form."""
    return Compiled.joined(before, *_separated(parameters, "&"))


def percent_encode(text: str) -> str:
    """Encode everything but the unreserved characters (RFC 3986, section 2.3)."""
    return text if _UNRESERVED.fullmatch(text) else quote(text, safe="")


def _header(name: str, text: str, known: Placeholders) -> Compiled:
    with _at(name):
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("not the name of a header, which has no placeholder either")
        if is_reserved(name):
            raise ValueError("this header is not set here; credentials stand in auth")
        value = known.compile(text, str, str)
        if not is_header_value(value.render("x")):
            raise ValueError("a header is printable ASCII, without blanks at its ends")
    return value


def _url_parameter(pair: str, known: Placeholders) -> Compiled:
    name, equals, text = pair.partition("=")
    return Compiled.joined(_as_query(_constant(name)), equals, _url_part(text, known, _as_query))


def _url_part(text: str, known: Placeholders, literal: Encode) -> Compiled:
    """Compile a part of a URL, in which quotes are recognized only if they are not encoded."""
    compiled = known.compile(text, percent_encode, literal)
    if compiled.slots and _ENCODED_QUOTE.search(text):
        raise ValueError("write quotes and backslashes as they are; they are encoded for you")
    return compiled


def _parameter(name: str, text: str, known: Placeholders) -> Compiled:
    with _at(name):
        value = known.compile(text, percent_encode, percent_encode)
        return Compiled.joined(percent_encode(_constant(name)), "=", value)


def _json_value(node: Any, known: Placeholders) -> Compiled:
    """Compile a JSON value whose strings may have placeholders; names of members may not."""
    if isinstance(node, str):
        return Compiled.joined('"', known.compile(node, _in_json, _in_json), '"')
    if isinstance(node, list):
        items = [_json_at(index, item, known) for index, item in enumerate(node)]
        return Compiled.joined("[", *_separated(items, ", "), "]")
    if isinstance(node, Mapping):
        members = [_json_member(name, value, known) for name, value in node.items()]
        return Compiled.joined("{", *_separated(members, ", "), "}")
    return Compiled.joined(json.dumps(node))


def _json_at(step: str | int, node: Any, known: Placeholders) -> Compiled:
    with _at(step):
        return _json_value(node, known)


def _json_member(name: str, node: Any, known: Placeholders) -> Compiled:
    with _at(name):
        key = json.dumps(_constant(name))
    return Compiled.joined(key, ": ", _json_at(name, node, known))


def _constant(name: str) -> str:
    return _NO_PLACEHOLDERS.compile(name, str, str).render("")


@contextmanager
def _at(step: str | int) -> Iterator[None]:
    """Prepend a step to the location of an error."""
    try:
        yield
    except TemplateError as error:
        raise TemplateError(str(error), step, *error.steps) from None
    except ValueError as error:
        raise TemplateError(str(error), step) from None


def _separated(parts: Sequence[Compiled], by: str) -> list[Compiled | str]:
    return [each for part in parts for each in (by, part)][1:]


def _in_json(text: str) -> str:
    return encode_basestring_ascii(text)[1:-1]


def _literal(safe: str) -> Encode:
    """Keep a part of a URL as it is written, and encode what a URL cannot hold."""

    def encode(text: str) -> str:
        if _BAD_PERCENT.search(text):
            raise ValueError("a lone % in a URL; write %25")
        return _ENCODED_DOT.sub(".", quote(text, safe=safe))

    return encode


_as_path = _literal("/:@!$&'()*+,;=-._~%")
_as_query = _literal("/?:@!$'()*+,;=-._~%")

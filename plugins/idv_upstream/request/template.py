"""Templates of requests: the placeholders in URLs, headers and bodies, and the encoding of values.

``{name}`` is a placeholder, and ``{{`` and ``}}`` stand for braces. A value is encoded for its
position in the request. Between quotes, a value is escaped first, so that it cannot end the quoted
text. Between double quotes, it is escaped as a JSON string (SCIM, GraphQL). Between single quotes,
each single quote in it is doubled (OData).

A text is compiled once, when the configuration is read, and rendered for each query.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from idv_upstream.request.url import split_url
from tornado_idv import Broken, strict_json

has_dot_segment = re.compile(
    r"(?:/|%2F|%5C)\.\.?(?=[/;]|%2F|%5C|%3B|%3F|%23|%00|$)", re.IGNORECASE
).search
"""Find a segment of a path that a server may treat as ``.`` or ``..``.

Some servers decode a path before they split it, so encoded slashes separate segments, too. Other
servers end a segment at a semicolon."""
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ENCODED_DOT = re.compile("%2e", re.IGNORECASE)
_ENCODED_QUOTE = re.compile("%(?:22|27|5C)", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
is_header_value = re.compile("(?:[!-~](?:[ -~]*[!-~])?)?").fullmatch
"""Match a value of printable ASCII, without blanks at its ends. Recipients strip them (RFC 9110,
section 5.5)."""
is_reserved = re.compile(
    "accept-encoding|authorization|connection|content-length|expect|host|keep-alive|"
    "proxy-.*|te|trailer|transfer-encoding|upgrade",
    re.IGNORECASE,
).fullmatch
"""Match the name of a header that the HTTP client or a credential sets."""
_BRACES = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")
_SLOT = "\0"  # stands for a placeholder while quotes are parsed
_QUOTED = re.compile(r""" "(?:[^"\\]|\\.)*" | '(?:[^']|'')*' """, re.DOTALL | re.VERBOSE)
# Quoted text that would need two layers of escaping, or would undo the escaping.
_AMBIGUOUS = {'"': re.compile(r'(?:^|[^\\])(?:\\\\)*\\["\0]'), "'": re.compile("''")}
Encode = Callable[[str], str]
"""A function that encodes a text for its position in a request, character by character."""
# The two escapes may have any order: neither adds or removes characters that the other escapes.
_ESCAPES: Mapping[str, Encode] = {
    '"': lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "'": lambda value: value.replace("'", "''"),
}
quote_all = partial(quote, safe="")
"""Percent-encode all characters of a text except unreserved ones (RFC 3986, section 2.3)."""
Parts = list[str | Encode]
"""A compiled text: constants, and encoders in place of the placeholders."""
Steps = tuple[str | int, ...]
"""The path to a part of a JSON tree: names of members, and indexes of lists."""
Problem = tuple[Steps, str]
"""The path to an invalid text in a JSON tree, and the problem."""


def render(parts: Parts, value: str) -> str:
    """Return a compiled text with its placeholders replaced by ``value``."""
    return "".join([part if isinstance(part, str) else part(value) for part in parts])


class Request(Struct, frozen=True):
    """A request, ready to send.

    ``url`` is an encoded absolute URL, or a path below ``base_url``. A ``repeatable`` request may
    be sent twice without harm.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    repeatable: bool

    def __repr__(self) -> str:
        """Return a text without values, since values may include the query and a credential."""
        return "Request()"


@dataclass(frozen=True, slots=True, repr=False)
class RequestTemplate:
    """A compiled request with placeholders."""

    method: str
    url: Parts
    headers: Mapping[str, Parts]
    body: Parts | None
    repeatable: bool

    def render(self, value: str) -> Request:
        """Return the request with its placeholders replaced by a value.

        Raises `Broken` if the value is invalid in its position. The error does not count against
        the circuit breaker, since the upstream has not failed.
        """
        if not value or not strict_json.is_unicode(value):
            raise Broken("the query cannot be sent", counts_against_breaker=False)
        url = render(self.url, value)
        if has_dot_segment(url.partition("?")[0]):
            raise Broken("the query cannot be part of a path", counts_against_breaker=False)
        headers = {name: render(header, value) for name, header in self.headers.items()}
        if not all(map(is_header_value, headers.values())):
            raise Broken("the query cannot be part of a header", counts_against_breaker=False)
        body = None if self.body is None else render(self.body, value).encode()
        return Request(self.method, url, headers, body, self.repeatable)


def _read(match: re.Match[str], names: Sequence[str], found: list[str]) -> str:
    token, column = match[0], match.start() + 1
    if token in ("{{", "}}"):
        return token[0]
    if len(token) == 1:
        raise ValueError(f"a lone {token} at column {column}; write {token * 2} for a brace")
    if token[1:-1] not in names:
        # The error omits the name, because text in braces may be a secret.
        if not names:
            raise ValueError(f"a placeholder at column {column}; only values can have placeholders")
        known = ", ".join(f"{{{name}}}" for name in names)
        raise ValueError(f"an unknown placeholder at column {column}; allowed here: {known}")
    found.append(token[1:-1])
    return _SLOT


def _quotes(shown: str, around: str) -> Iterator[str]:
    """For each placeholder, yield the characters of the quotes around it, the innermost first."""
    done = 0
    for match in _QUOTED.finditer(shown):
        yield from [around] * shown.count(_SLOT, done, match.start())
        quote, inside = match[0][0], match[0][1:-1]
        if _SLOT in inside and _AMBIGUOUS[quote].search(inside):
            raise ValueError(
                "a placeholder is not allowed between quotes that contain escaped quotes"
            )
        yield from _quotes(inside, quote + around)
        done = match.end()
    yield from [around] * shown.count(_SLOT, done)


@dataclass(frozen=True, slots=True)
class Placeholders:
    """The allowed placeholders of a text, and the first of the configured ``profile_sites``.

    ``{profile_site}`` stands for this site, ``{profile_url}`` for the profile URL, and any other
    placeholder for the value of the query.
    """

    names: Sequence[str] = ()
    profile_site: str = "x"

    def compile(self, text: str, value: Encode = str, literal: Encode = str) -> Parts:
        """Compile ``text``. ``value`` encodes values of placeholders, ``literal`` all other text.

        Raises `ValueError` for an unknown placeholder, and for a text that ``literal`` rejects. A
        placeholder between quotes is also an error, unless its value can be escaped safely.
        """
        if _SLOT in text:
            raise ValueError("a NUL character cannot be sent")
        found: list[str] = []
        shown = _BRACES.sub(lambda match: _read(match, self.names, found), text)
        first, *literals = shown.split(_SLOT)
        parts: Parts = [literal(first)]
        for name, quotes, behind in zip(found, _quotes(shown, ""), literals, strict=True):
            encode = _in_quotes(quotes, value)
            if name == "profile_site":
                parts.append(encode(self.profile_site))
            else:
                before = encode(f"{self.profile_site}/m/") if name == "profile_url" else ""
                parts += [before, encode]
            parts.append(literal(behind))
        return parts

    def compile_url(self, url: str, query: Mapping[str, str]) -> Parts:
        """Compile a URL, with additional query parameters."""
        origin, path, own_query = split_url(url)
        parts = [origin, *self._url_part(path, _as_path)]
        if has_dot_segment(render(parts, "x")):
            raise ValueError("a path cannot have segments of dots (. or ..)")
        parameters = []
        for pair in own_query.split("&") if own_query else ():
            name, equals, text = pair.partition("=")
            value = self._url_part(text, _as_query)
            parameters.append([_as_query(_constant(name)), equals, *value])
        parameters += self._parameters(query)
        return [*parts, "?", *_joined("&", parameters)] if parameters else parts

    def compile_form(self, members: Mapping[str, str]) -> Parts:
        return _joined("&", self._parameters(members))

    def compile_json(self, node: Any) -> Parts:
        """Compile a JSON value. Strings may have placeholders, but names of members must not."""
        if isinstance(node, str):
            return ['"', *self.compile(node, _in_json, _in_json), '"']
        if isinstance(node, list):
            return ["[", *_joined(", ", [self.compile_json(item) for item in node]), "]"]
        if isinstance(node, Mapping):
            members: list[Parts] = [
                [json.dumps(_constant(name)), ": ", *self.compile_json(value)]
                for name, value in node.items()
            ]
            return ["{", *_joined(", ", members), "}"]
        return [json.dumps(node)]

    def _parameters(self, members: Mapping[str, str]) -> list[Parts]:
        return [
            [quote_all(_constant(name)), "=", *self.compile(text, quote_all, quote_all)]
            for name, text in members.items()
        ]

    def _url_part(self, text: str, literal: Encode) -> Parts:
        """Compile a URL part. Reject %-encoded quotes: a value in them would not be escaped."""
        parts = self.compile(text, quote_all, literal)
        if any(map(callable, parts)) and _ENCODED_QUOTE.search(text):
            raise ValueError("write quotes and backslashes unencoded; this service encodes them")
        return parts

    def problems(self, node: Any, steps: Steps = ()) -> Iterator[Problem]:
        """Yield the problems of texts in a tree. Names of members must have no placeholders."""
        if isinstance(node, Mapping):
            for name, member in node.items():
                yield from Placeholders().problems(name, (*steps, name))
                yield from self.problems(member, (*steps, name))
        elif isinstance(node, list):
            for index, item in enumerate(node):
                yield from self.problems(item, (*steps, index))
        elif isinstance(node, str):
            try:
                self.compile(node)
            except ValueError as error:
                yield steps, str(error)

    def header_problems(self, headers: Mapping[str, str]) -> Iterator[Problem]:
        """Yield the problems in the names and values of headers."""
        for name, text in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                yield (name,), "not the name of a header; a name cannot have a placeholder either"
            elif is_reserved(name):
                yield (name,), "this header cannot be set here; write credentials in auth"
            elif problems := list(self.problems(text, (name,))):
                yield from problems
            elif not is_header_value(render(self.compile(text), "x")):
                yield (name,), "must be printable ASCII, without blanks at its ends"


def _in_quotes(quotes: str, encode: Encode) -> Encode:
    def encoded(value: str) -> str:
        for each in quotes:
            value = _ESCAPES[each](value)
        return encode(value)

    return encoded if quotes else encode


def parse_json(body: Any) -> Any:
    """Parse a configured body if it is a string. Return any other body unchanged."""
    try:
        return strict_json.loads(body, max_depth=128) if isinstance(body, str) else body
    except ValueError:
        raise ValueError(
            "not JSON; write a mapping, a list, or JSON within single quotes"
        ) from None


def _constant(name: str) -> str:
    return render(Placeholders().compile(name), "")


def _joined(by: str, texts: Sequence[Parts]) -> Parts:
    return [part for text in texts for part in (by, *text)][1:]


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _literal(safe: str, text: str) -> str:
    """Return the constant text of a URL. Only invalid characters are encoded."""
    if _BAD_PERCENT.search(text):
        raise ValueError("a lone % in a URL; write %25")
    return _ENCODED_DOT.sub(".", quote(text, safe=safe))


_as_path = partial(_literal, "/:@!$&'()*+,;=-._~%")
_as_query = partial(_literal, "/?:@!$'()*+,;=-._~%")

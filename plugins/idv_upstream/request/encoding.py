"""Encodes values for their position in a request, so that they cannot reach beyond it.

Everything here is compiled once, when the configuration is read; errors are raised as
`TemplateError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from json.encoder import encode_basestring_ascii
from typing import Any
from urllib.parse import quote

from idv_upstream.request.templates import Compiled, Encode, Placeholders
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

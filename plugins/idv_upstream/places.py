"""How a value is written at each place of a request, so that it reaches that place alone.

Everything here is done once, when the configuration is read; what is wrong with it is
raised as `Misplaced`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from json.encoder import encode_basestring_ascii
from typing import Any
from urllib.parse import quote

from idv_upstream.addresses import is_origin
from idv_upstream.templates import Encode, Filling, Placeholders

_URL = re.compile(r"((?:[^/?#{}]*://[^/?#]*)?)((?:/[^?#]*)?)((?:\?[^#]*)?)", re.DOTALL)
_DOT_SEGMENT = re.compile(r"(?:/|%2F|%5C)\.\.?(?=[/;]|%2F|%5C|%3B|%3F|%23|%00|$)", re.IGNORECASE)
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ENCODED_DOT = re.compile("%2e", re.IGNORECASE)
_ENCODED_QUOTE = re.compile("%(?:22|27|5C)", re.IGNORECASE)
_UNRESERVED = re.compile("[A-Za-z0-9._~-]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Blanks at the ends are refused: whoever reads the header drops them.
_HEADER_VALUE = re.compile("(?:[!-~](?:[ -~]*[!-~])?)?")
# What the client sets, and what credentials are.
_NOT_SET_HERE = re.compile(
    "accept-encoding|authorization|connection|content-length|expect|host|keep-alive|"
    "proxy-.*|te|trailer|transfer-encoding|upgrade",
    re.IGNORECASE,
)
_NOTHING = Placeholders((), {})


def is_set_elsewhere(header: str) -> bool:
    """Whether a header is the client's business, or a credential's."""
    return _NOT_SET_HERE.fullmatch(header) is not None


class Misplaced(ValueError):
    """A text that cannot be made ready; ``steps`` lead to it."""

    def __init__(self, message: str, *steps: str | int) -> None:
        super().__init__(message)
        self.steps = steps


def split(url: str) -> tuple[str, str, str]:
    """The origin, path and query of ``url``; the first is empty where an endpoint goes before."""
    match = _URL.fullmatch(url)
    if match is None or not (match[1] or match[2]) or url.startswith("//"):
        raise ValueError(
            "not a URL that can be asked; write a path that begins with one slash, or http or "
            "https and a host: placeholders stand behind the host, and there is no fragment"
        )
    return match[1], match[2] or "/", match[3].removeprefix("?")


def target(url: str, known: Placeholders) -> Filling:
    """Where to ask, without the query."""
    origin, path, _ = split(url)
    if origin and not is_origin(origin):
        raise ValueError(
            "not a host that can be asked; write http or https, a host and, if need be, a port: "
            "no user info and no placeholder"
        )
    filling = Filling.joined(origin, _part(path, known, _as_path))
    if has_dot_segment(filling.filled(dict.fromkeys(known.names, "x"))):
        raise ValueError("a path cannot have segments of dots")
    return filling


def has_dot_segment(path: str) -> bool:
    """Whether a path leads up or nowhere.

    Encoded slashes count too, for some servers decode a path before they split it; and some
    read a segment only up to a semicolon.
    """
    return _DOT_SEGMENT.search(path) is not None


def url_parameters(url: str, known: Placeholders) -> list[Filling]:
    """The parameters in the query of ``url``."""
    query = split(url)[2]
    return [_url_parameter(pair, known) for pair in query.split("&")] if query else []


def parameters(members: Mapping[str, str], known: Placeholders) -> list[Filling]:
    """The parameters of a query or a form."""
    return [_parameter(name, text, known) for name, text in members.items()]


def headers(members: Mapping[str, str], known: Placeholders) -> dict[str, Filling]:
    """The values of headers by their names."""
    return {name: _header(name, text, known) for name, text in members.items()}


def is_header_value(text: str) -> bool:
    """Whether ``text`` reaches the other side as it is."""
    return _HEADER_VALUE.fullmatch(text) is not None


def json_document(node: Any, known: Placeholders) -> Filling:
    """A JSON document whose texts may have placeholders; names of members may not."""
    if isinstance(node, str):
        return Filling.joined('"', known.filling(node, _in_json, _in_json), '"')
    if isinstance(node, list):
        items = [_json_at(index, item, known) for index, item in enumerate(node)]
        return Filling.joined("[", *_separated(items, ", "), "]")
    if isinstance(node, Mapping):
        members = [_json_member(name, value, known) for name, value in node.items()]
        return Filling.joined("{", *_separated(members, ", "), "}")
    return Filling.joined(json.dumps(node))


def ampersands(before: str, pairs: Sequence[Filling]) -> Filling:
    """The parameters as a query or a form has them."""
    return Filling.joined(before, *_separated(pairs, "&"))


def percent(text: str) -> str:
    """``text`` with everything encoded that has a meaning of its own in a URL or a form."""
    return text if _UNRESERVED.fullmatch(text) else quote(text, safe="")


def _header(name: str, text: str, known: Placeholders) -> Filling:
    with _at(name):
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("not the name of a header, which has no placeholder either")
        if is_set_elsewhere(name):
            raise ValueError("this header is not set here; credentials stand in auth")
        filling = known.filling(text, str, str)
        if not is_header_value(filling.filled(dict.fromkeys(known.names, "x"))):
            raise ValueError("a header is printable ASCII, without blanks at its ends")
    return filling


def _url_parameter(pair: str, known: Placeholders) -> Filling:
    name, equals, text = pair.partition("=")
    return Filling.joined(_as_query(_plain(name)), equals, _part(text, known, _as_query))


def _part(text: str, known: Placeholders, literal: Encode) -> Filling:
    """A part of a URL, in which quotes are seen only if they are not encoded."""
    filling = known.filling(text, percent, literal)
    if filling.names and _ENCODED_QUOTE.search(text):
        raise ValueError("write quotes and backslashes as they are; they are encoded for you")
    return filling


def _parameter(name: str, text: str, known: Placeholders) -> Filling:
    with _at(name):
        value = known.filling(text, percent, percent)
        return Filling.joined(percent(_plain(name)), "=", value)


def _json_at(step: str | int, node: Any, known: Placeholders) -> Filling:
    with _at(step):
        return json_document(node, known)


def _json_member(name: str, node: Any, known: Placeholders) -> Filling:
    with _at(name):
        key = json.dumps(_plain(name))
    return Filling.joined(key, ": ", _json_at(name, node, known))


def _plain(name: str) -> str:
    return _NOTHING.filling(name, str, str).filled({})


@contextmanager
def _at(step: str | int) -> Iterator[None]:
    """Adds where it was to whatever is wrong."""
    try:
        yield
    except Misplaced as wrong:
        raise Misplaced(str(wrong), step, *wrong.steps) from None
    except ValueError as wrong:
        raise Misplaced(str(wrong), step) from None


def _separated(parts: Sequence[Filling], by: str) -> list[Filling | str]:
    return [each for part in parts for each in (by, part)][1:]


def _in_json(text: str) -> str:
    return encode_basestring_ascii(text)[1:-1]


def _as_written(safe: str) -> Encode:
    """Leaves a part of a URL as it is, but for what cannot stand in one."""

    def written(text: str) -> str:
        if _BAD_PERCENT.search(text):
            raise ValueError("a lone % in a URL; write %25")
        return _ENCODED_DOT.sub(".", quote(text, safe=safe))

    return written


_as_path = _as_written("/:@!$&'()*+,;=-._~%")
_as_query = _as_written("/?:@!$'()*+,;=-._~%")

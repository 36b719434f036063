"""Applies the tree of a JMESPath expression to documents.

The library walks its tree anew for each document. Names, comparisons with text, calls of
functions and what joins them are made functions here, once; either way gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from jmespath.functions import Functions, signature
from jmespath.parser import ParsedResult
from jmespath.visitor import Options

Look = Callable[[Any], Any]
Node = Mapping[str, Any]


class AllFunctions(Functions):
    """The standard functions, and those that directories need beside them."""

    @signature({"types": ["string"]})
    def _func_lower(self, text: str) -> str:
        return text.lower()


_FUNCTIONS = AllFunctions()
_OPTIONS = Options(custom_functions=_FUNCTIONS)


def searching(parsed: ParsedResult) -> Look:
    """A function from a document to what the expression gives for it."""
    return _quick(parsed.parsed) or (lambda value: parsed.search(value, _OPTIONS))


def is_false(value: Any) -> bool:
    """JMESPath's truth: null, false, and empty text, lists and objects are false; 0 is not."""
    return not value and type(value) not in (int, float)


def _quick(node: Node) -> Look | None:
    """What gives the same as the library would; ``None``: only the library can tell."""
    make = _QUICK.get(node["type"])
    return make(node) if make else None


def _children(node: Node) -> Sequence[Look] | None:
    looks = [look for child in node["children"] if (look := _quick(child)) is not None]
    return looks if len(looks) == len(node["children"]) else None


def _field(node: Node) -> Look:
    name = node["value"]
    return lambda value: value.get(name) if type(value) is dict else None


def _literal(node: Node) -> Look:
    literal = node["value"]
    return lambda _value: literal


def _chain(node: Node) -> Look | None:
    steps = _children(node)
    if steps is None:
        return None

    def look(value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    return look


def _comparison(node: Node) -> Look | None:
    left, right = node["children"]
    look, text = _quick(left), right.get("value")
    # Only with text: to Python, unlike to JMESPath, 1 and true are equal.
    if look is None or right["type"] != "literal" or type(text) is not str:
        return None
    if node["value"] == "eq":
        return lambda value: bool(look(value) == text)
    if node["value"] == "ne":
        return lambda value: bool(look(value) != text)
    return None


def _joined(node: Node, *, asks_on: bool) -> Look | None:
    """The second, if the first gives what is ``asks_on`` by JMESPath's truth; else the first."""
    looks = _children(node)
    if looks is None:
        return None
    first, second = looks

    def look(value: Any) -> Any:
        given = first(value)
        return given if is_false(given) is asks_on else second(value)

    return look


def _call(node: Node) -> Look | None:
    name, arguments = node["value"], _children(node)
    if arguments is None:
        return None
    return lambda value: _FUNCTIONS.call_function(name, [look(value) for look in arguments])


_QUICK: Mapping[str, Callable[[Node], Look | None]] = {
    "and_expression": partial(_joined, asks_on=True),
    "comparator": _comparison,
    "current": lambda _node: lambda value: value,
    "field": _field,
    "function_expression": _call,
    "literal": _literal,
    "or_expression": partial(_joined, asks_on=False),
    "subexpression": _chain,
}

"""JMESPath expressions, checked when they are read: what is wrong is told in a sentence."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import jmespath
from jmespath.exceptions import IncompleteExpressionError, JMESPathTypeError, ParseError
from jmespath.parser import ParsedResult
from pydantic import AfterValidator

from idv_upstream.searching import AllFunctions, searching
from tornado_idv import Broken

_HINTS = {
    "=": "; compare with ==",
    "-": '; a name with a dash stands in double quotes, like "first-name"',
    "$": "; leave $ out, for an expression begins at the document",
}
# What a search may raise if the document is not such as the expression was written for.
_MISFITS = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RuntimeError)
_KINDS = {
    "NoneType": "null",
    "bool": "true or false",
    "dict": "an object",
    "float": "a number",
    "int": "a number",
    "list": "a list",
    "str": "text",
}


class Expression:
    """One expression; ``text`` is as it was written.

    Making one raises `ValueError`, which says where it is wrong.
    """

    __slots__ = ("_look", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        parsed = _parsed(text)
        try:
            _check_functions(text, parsed.parsed)
            self._look = searching(parsed)
        except RecursionError:
            raise ValueError("not a JMESPath expression that can be used: too long") from None
        if parsed.parsed["type"] == "expref":
            raise ValueError(f"not a JMESPath expression: {text} gives an expression, no value")

    def of(self, value: Any) -> Any:
        """What it gives for ``value``; raises `Broken` if it cannot be applied to it."""
        try:
            return self._look(value)
        except JMESPathTypeError as error:
            given = f"{error.function_name}() is given {error.actual_type}"
            raise Broken(f"{self.text} does not fit the answer: {given}") from None
        except _MISFITS:
            raise Broken(f"{self.text} does not fit the answer") from None


def kind_of(value: Any) -> str:
    """What kind of thing ``value`` is, for a sentence that must not hold the value."""
    return _KINDS.get(type(value).__name__, "no JSON")


def _checked(text: str) -> str:
    Expression(text)
    return text


def _leaves_none_out(text: str) -> str:
    """Refuses to look for a list through its members: those without it would not be seen."""
    for node in _nodes(jmespath.compile(text).parsed):
        if node["type"].endswith("projection") and node["children"][1]["type"] != "identity":
            raise ValueError(
                f"{text} leaves out records that are of another shape than expected, and nobody "
                "would be found; select the list itself, and write the rest into the fields"
            )
    return text


def picks_an_element(text: str) -> bool:
    """Whether the expression takes an element out of a list anywhere."""
    return any(map(_is_pick, _nodes(jmespath.compile(text).parsed)))


def ends_in_an_element(text: str) -> bool:
    """Whether what the expression gives is an element, or a slice, of a list."""
    return any(map(_is_pick, _last(jmespath.compile(text).parsed)))


def gives_all(text: str) -> bool:
    """Whether the expression gives the value that it is applied to, if anything."""
    return any(node["type"] == "current" for node in _last(jmespath.compile(text).parsed))


ExpressionText = Annotated[str, AfterValidator(_checked)]
"""A JMESPath expression."""


ListText = Annotated[ExpressionText, AfterValidator(_leaves_none_out)]
"""A JMESPath expression that gives a record, or a list of whole records."""


def _parsed(text: str) -> ParsedResult:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", PendingDeprecationWarning)
            return jmespath.compile(text)
    except PendingDeprecationWarning:
        what = "has text in backquotes; write it in single quotes, like 'active'"
    except IncompleteExpressionError:
        what = "breaks off at its end"
    except ParseError as error:
        what = f"is wrong at column {error.lex_position + 1}{_hint(error)}"
    except (ValueError, LookupError, RecursionError):
        what = "cannot be read" if text else "is empty"
    raise ValueError(f"not a JMESPath expression: {text or 'it'} {what}")


def _hint(error: ParseError) -> str:
    if isinstance(error.token_value, int):
        return "; a number stands in backquotes, like `0`"
    return _HINTS.get(str(error.token_value), "")


def _check_functions(text: str, node: Mapping[str, Any]) -> None:
    table = AllFunctions.FUNCTION_TABLE
    for name, given in _calls(node):
        if name not in table:
            known = ", ".join(sorted(table))
            raise ValueError(f"{text} calls {name}(), which there is not; there are {known}")
        parameters = table[name]["signature"]
        needed, more = len(parameters), parameters[-1].get("variadic")
        if given < needed or (given > needed and not more):
            raise ValueError(f"{text} calls {name}() with {given} arguments; it takes {needed}")


def _calls(node: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The functions that are called, and with how many values."""
    if node["type"] == "function_expression":
        yield node["value"], len(node["children"])
    for child in node["children"]:
        if isinstance(child, Mapping):  # a slice has numbers for children
            yield from _calls(child)


def _is_pick(node: Mapping[str, Any]) -> bool:
    return node["type"] in ("index", "slice") or node.get("value") in ("max_by", "min_by")


def _last(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of an expression that may give its value."""
    yield node
    children = node["children"]
    if node["type"] in ("and_expression", "or_expression") or node.get("value") == "not_null":
        yield from (last for child in children for last in _last(child))
    elif node["type"] in ("index_expression", "pipe", "subexpression"):
        yield from _last(children[-1])
    elif node["type"] == "projection":
        yield from _last(children[0])


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node["children"]:
        if isinstance(child, dict) and "children" in child:
            yield from _nodes(child)

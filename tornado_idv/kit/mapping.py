"""Mapping of records of other systems to the fields of a user, by JMESPath expressions.

Expressions are checked when the configuration is read. No error contains a value of a record.
"""

import json
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Self
from uuid import UUID

import jmespath
from jmespath.exceptions import (
    ArityError,
    IncompleteExpressionError,
    JMESPathTypeError,
    ParseError,
    UnknownFunctionError,
)
from jmespath.functions import Functions, signature
from jmespath.visitor import Options as InterpreterOptions
from jmespath.visitor import TreeInterpreter
from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from tornado_idv import strict_json
from tornado_idv.errors import Broken
from tornado_idv.model import Step
from tornado_idv.options import Options, checked_by

_NUMBER_HINT = "; a number stands in backquotes, like `0`"
_HINTS = {
    "=": "; compare with ==",
    "-": '; a name with a dash stands in double quotes, like "first-name"',
    "$": "; leave $ out, because an expression begins at the document, or write $root",
}
_JSON_TYPES = {
    "NoneType": "null",
    "bool": "true or false",
    "bytes": "binary",
    "dict": "an object",
    "float": "a number",
    "int": "a number",
    "list": "a list",
    "str": "text",
}
_SCALARS = (str, int, float, bool, type(None))
ROOT = "$root"
"""In an expression for a record, this name stands for the whole document around the record."""
_ROOT = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|\$root\b""")
_NEGATED = re.compile(r"""!\s*((?:[\w@$]+|"[^"]*")(?:\.(?:\w+|"[^"]*"))+)""")
Node = Mapping[str, Any]
_PATH_NODES = {"field", "subexpression", "index_expression", "index", "slice", "flatten"}
_PATH_NODES |= {"projection", "pipe", "identity", "current"}


class AllFunctions(Functions):
    """The functions for expressions: those of JMESPath, and the additional functions below."""

    @signature({"types": ["string"]})
    def _func_lower(self, text: str) -> str:
        return text.lower()

    @signature({"types": ["string"]}, {"types": ["string"]})
    def _func_trim_prefix(self, text: str, prefix: str) -> str:
        if not text.startswith(prefix):  # the unchanged text would be another identifier
            raise ValueError("the text does not begin with the prefix")
        return text[len(prefix) :]

    @signature({"types": ["string"]}, {"types": ["string"]})
    def _func_trim_suffix(self, text: str, suffix: str) -> str:
        if not text.endswith(suffix):
            raise ValueError("the text does not end with the suffix")
        return text[: len(text) - len(suffix)]

    @signature({"types": []})
    def _func_to_string(self, value: Any) -> Any:
        # The function of JMESPath converts null to "null", a wrong plan or a wrong id in a request.
        is_kept = value is None or type(value) is str
        return value if is_kept else json.dumps(value, separators=(",", ":"))

    @signature({"types": ["string"]}, {"types": ["string"]})
    def _func_split(self, text: str, separator: str) -> list[str]:
        return text.split(separator)

    @signature({"types": ["string"]}, {"types": ["string"]}, {"types": ["string"]})
    def _func_replace(self, text: str, old: str, new: str) -> str:
        return text.replace(old, new)

    @signature({"types": ["string", "number"]}, {"types": ["number"]})
    def _func_has_bits(self, value: str | float, mask: int) -> bool:
        return int(value) & mask == mask

    @signature({"types": []})
    def _func_guid(self, value: bytes) -> str:
        return str(UUID(bytes_le=value))


# `ParsedResult.search` creates an interpreter with empty caches for each document, which takes 2 to
# 3 times as long.
_evaluate: Callable[[Any, Any], Any] = TreeInterpreter(
    InterpreterOptions(custom_functions=AllFunctions())
).visit


class Expression:
    """A compiled JMESPath expression. ``text`` is its source, ``node`` the root of its syntax tree.

    Raises `ValueError` for an invalid expression.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.node = _parse(text)
        if self.node["type"] == "expref":  # as a condition, it would always be true
            raise ValueError(f"not a value: {text} is an expression reference; remove the &")

    @property
    def members(self) -> set[str]:
        """The names of all members in the expression, at any depth."""
        return {node["value"] for node in nodes_of(self.node) if node["type"] == "field"}

    @cached_property
    def paths(self) -> list[list[str]]:
        """The path of member names to each value that the expression reads."""
        return list(_paths(self.node))

    def evaluate(self, value: Any) -> Any:
        """Return the result for ``value``. Raises `Broken` for an unexpected structure."""
        try:
            return _evaluate(self.node, value)
        except JMESPathTypeError as error:
            given = f"{error.function_name}() is given {error.actual_type}"
            raise Broken(f"{self.text} does not fit the response: {given}") from None
        except (UnknownFunctionError, ArityError) as error:  # their messages contain no value
            raise Broken(f"{self.text} cannot be evaluated: {error}") from None
        except Exception:  # noqa: BLE001 - of a function that is given an unexpected value
            raise Broken(f"{self.text} does not fit the response") from None

    def step(self, name: str, value: Any) -> Step:
        """Evaluate the expression; return the result or error as a `Step` of `Backend.explain`."""
        try:
            result = self.evaluate(value)
        except Broken as error:
            return Step(name, None, self.text, error.reason)
        missing = tuple(".".join(each) for each in self.paths if not has_path(value, each))
        note = f"missing: {', '.join(missing)}" if result is None and missing else ""
        return Step(name, result, self.text, note, missing=missing)

    def reads(self, value: Any) -> bool:
        """Return whether ``value`` has at least one of `paths`."""
        return any(has_path(value, each) for each in self.paths)


def is_falsy(value: Any) -> bool:
    """Return whether JMESPath treats a value as false: null, false and empty values, but not 0."""
    return not value and type(value) not in (int, float)


def json_type(value: Any) -> str:
    """Return the name of the JSON type of ``value``, for messages without the value."""
    return _JSON_TYPES.get(type(value).__name__, "no JSON")


def _check_no_projection(text: str) -> None:
    """Raise `ValueError` for a projection such as ``[*].id``. It drops records without ``id``."""
    for node in nodes_of(_parse(text)):
        if node["type"].endswith("projection") and node["children"][1]["type"] != "identity":
            raise ValueError(
                f"{text} leaves out records with an unexpected structure, so their users would "
                "not be found; select only the list here, and move the rest of the path into fields"
            )


ExpressionText = Annotated[str, checked_by(Expression)]
"""A JMESPath expression."""

ListText = Annotated[ExpressionText, checked_by(_check_no_projection)]
"""A JMESPath expression for a record or a list of records, but not for members of records."""


def _parse(text: str) -> Node:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", PendingDeprecationWarning)
            # JMESPath has no name for the whole document. Only quoted names may contain "$", so
            # $root becomes "$root".
            named = _ROOT.sub(lambda each: f'"{ROOT}"' if each[0] == ROOT else each[0], text)
            parsed: Node = jmespath.compile(named).parsed
            deque(nodes_of(parsed), maxlen=0)  # raises RecursionError here, not in a later check
    except PendingDeprecationWarning:
        problem = "has text in backquotes; write it in single quotes, like 'active'"
    except IncompleteExpressionError:
        problem = "is incomplete"
    except ParseError as error:
        is_number = isinstance(error.token_value, int)
        hint = _NUMBER_HINT if is_number else _HINTS.get(str(error.token_value), "")
        problem = f"is wrong at column {error.lex_position + 1}{hint}"
    except (ValueError, LookupError, RecursionError):
        problem = "cannot be read" if text else "is empty"
    else:
        if not any(map(_is_misread_negation, nodes_of(parsed))):
            return parsed
        negated = _NEGATED.search(text)
        right = f"!({negated[1]}) for {negated[0]}" if negated else "!(a.b), !(a == b), a || b"
        problem = f"has the same result for every response; write {right}"
    raise ValueError(f"not a JMESPath expression: {text or 'it'} {problem}")


def nodes_of(node: Node) -> Iterator[Node]:
    """Yield all nodes of a syntax tree."""
    yield node
    for child in node["children"]:
        if isinstance(child, Mapping):  # the children of a slice are numbers
            yield from nodes_of(child)


def _is_misread_negation(node: Node) -> bool:
    """Return whether a node is ``!a.b`` or ``!a == b``. JMESPath parses them as ``(!a).b`` etc."""
    kind, children = node["type"], [each for each in node["children"] if isinstance(each, Mapping)]
    kinds = [each["type"] for each in children]
    if kind == "comparator" and "not_expression" in kinds:
        other = children[1 - kinds.index("not_expression")]
        is_text = other["type"] == "literal" and type(other["value"]) is not bool
        return is_text or other["type"] in ("field", "subexpression")
    reads_members = kind.endswith(("subexpression", "index_expression", "projection", "flatten"))
    if kind == "pipe":
        reads_members = any(each["type"] == "field" for each in nodes_of(children[1]))
    return reads_members and kinds[0] in ("not_expression", "comparator")


def _paths(node: Node) -> Iterator[list[str]]:
    nodes = list(nodes_of(node))
    names = [each["value"] for each in nodes if each["type"] == "field"]
    if names and _PATH_NODES.issuperset(each["type"] for each in nodes):
        yield names
    else:  # an element of a projection, such as a.*.b, has no path of names
        for child in node["children"][: 1 if node["type"].endswith("projection") else None]:
            if isinstance(child, Mapping):
                yield from _paths(child)


def has_path(value: Any, names: Sequence[str]) -> bool:
    """Return whether a path exists, also with the value null. In a list, one element suffices."""
    if not names:
        return True
    if isinstance(value, list):
        return any(has_path(each, names) for each in value)
    return isinstance(value, dict) and names[0] in value and has_path(value[names[0]], names[1:])


class FieldOptions(Options):
    """The source of the value of a user's field."""

    path: ExpressionText | None = None
    """A JMESPath expression on the user's record."""
    value_map: dict[str, str] = Field(default_factory=dict)
    """Replacements of values. Write numbers, true, false and null as in JSON."""
    default: str | None = None
    """The text for null, and for values that are not in ``value_map``."""
    const: str | None = None
    """A constant text. It excludes all other options."""

    @field_validator("const")
    @classmethod
    def _check_alone(cls, const: str | None, info: ValidationInfo) -> str | None:
        if const is not None and any(info.data.values()):
            raise ValueError("const excludes all other options; write const alone, or remove const")
        return const

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.path is None and self.const is None:
            raise ValueError("a field needs a source; write path or const")
        return self


FieldSource = Annotated[
    Annotated[ExpressionText, Tag("text")] | Annotated[FieldOptions, Tag("mapping")],
    Discriminator(lambda value: "text" if isinstance(value, str) else "mapping"),
]
"""A JMESPath expression, or a mapping of `FieldOptions`."""


class MappedField:
    """A user's field with a compiled expression. Without ``source``, the field is missing."""

    def __init__(self, name: str, source: FieldSource | None) -> None:
        options = source
        if not isinstance(options, FieldOptions):
            options = FieldOptions.model_construct(path=options)
        self.name = name
        self.expression = None if options.path is None else Expression(options.path)
        self._const = options.const
        self._default = options.default
        self._map = options.value_map

    def required(self, record: Any) -> str:
        """Return the text of the field. Raises `Broken` for a missing or wrong field."""
        text = self.text(record)
        if text is None:
            raise self.error("is missing")
        return text

    def text(self, record: Any) -> str | None:
        """Return the text of the field, or ``None`` for a missing field. Raises `Broken`."""
        if self.expression is None:
            return self._const
        value = self.expression.evaluate(record)
        if self._map:
            value = self._mapped(value)
        if value is None:
            return self._default
        if type(value) is not str:
            advice = f"; use to_string({self.expression.text}) unless leading zeros are needed"
            hint = advice if type(value) in (int, float) else ""
            raise self.error(f"is {json_type(value)}, not text{hint}")
        if not strict_json.is_unicode(value):
            raise self.error("has a lone surrogate")
        return value

    def error(self, what: str) -> Broken:
        """Return an error that names this field and its expression."""
        where = f" ({self.expression.text})" if self.expression else ""
        return Broken(f"a wrong record: {self.name}{where} {what}")

    def _mapped(self, value: Any) -> Any:
        if type(value) not in _SCALARS:
            return value
        mapped = self._map.get(value if type(value) is str else json.dumps(value), self._default)
        if mapped is None and value is not None:
            raise self.error("has a value that is not in value_map, and no default")
        return mapped

"""Results of an expression for documents that no upstream sent, to find what is not meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice, product
from typing import Any

from tornado_idv import Broken
from tornado_idv.mapping import Expression, Node, is_falsy, nodes_of

_OTHER = "text that no expression names"
_GONE, _MISSING = object(), object()
"""In the place of a value: its member is missing; with `_GONE` the objects around it, too."""
_MAX_DOCUMENTS = 10_000
_SEARCHES = ("contains", "ends_with", "starts_with")
_SIMPLE = {*_SEARCHES, "has_bits", "keys", "length", "lower", "not_null", "to_string", "type"}
"""Functions that have each of their results for one of the values in `is_constant`."""
_UNCLEAR = {"slice", "expref", "pipe"}
_LIST: tuple[str | None, ...] = (None,)
Path = tuple[str | None, ...]
"""The members that lead to a value; ``None`` is an element of a list, "" any member."""


def results_for_others(text: str, *errors: str) -> list[Any]:
    """Return the results for responses of another kind, such as an error.

    In those the members that the expression reads are missing, also within an object that is
    there, or have unknown values, and none of the conditions ``errors`` is true.
    """
    expression, conditions = Expression(text), [Expression(each) for each in errors]
    results = []
    for document in _documents(_paths(expression.node), (_GONE, _MISSING, _OTHER)):
        with suppress(Broken):
            if all(is_falsy(each.evaluate(document)) for each in conditions):
                results.append(expression.evaluate(document))
    return results


def is_constant(text: str) -> bool:
    """Return whether a condition is true for all documents, or for none; false if unclear."""
    expression = Expression(text)
    nodes = list(nodes_of(expression.node))
    literals = [node["value"] for node in nodes if node["type"] == "literal"]
    literals += [inner for each in literals if isinstance(each, list) for inner in each]
    numbers = [each for each in literals if type(each) in (int, float)]
    called = {node["value"] for node in nodes if node["type"] == "function_expression"}
    is_long = "length" in called and max(numbers, default=0) > 1
    is_late = any(node["type"] == "index" and node["value"] not in (0, -1) for node in nodes)
    if is_long or is_late or called - _SIMPLE or _UNCLEAR & {node["type"] for node in nodes}:
        return False
    values = [_MISSING, None, _OTHER, True, False, 0, 1, [], [_OTHER] * 2, *literals]
    values += [[each] for each in literals] + [each + step for each in numbers for step in (-1, 1)]
    values += [{each: _OTHER} for each in (*literals, _OTHER) if type(each) is str]
    paths = _paths(expression.node)
    if len(values) ** len(paths) > _MAX_DOCUMENTS:
        return False
    found: set[bool] = set()
    for document in _documents(paths, values):
        with suppress(Broken):
            found.add(is_falsy(expression.evaluate(document)))
        if len(found) > 1:
            return False
    return True


def has_filter(text: str) -> bool:
    """Return whether an expression drops elements of a list by a condition."""
    return any(node["type"] == "filter_projection" for node in nodes_of(Expression(text).node))


def compares_names(text: str) -> bool:
    """Return whether it compares two members, or searches a constant text for a member."""
    for node in nodes_of(Expression(text).node):
        kinds = [each["type"] for each in node["children"] if isinstance(each, Mapping)]
        if node["type"] == "comparator" and kinds == ["field", "field"]:
            return True
        if node.get("value") in _SEARCHES and kinds[:2] == ["literal", "field"]:
            return type(node["children"][0]["value"]) is str
    return False


def reads_within(expression: Expression, outer: Expression) -> bool:
    """Return whether an expression reads what another one gives, or is within that."""
    outer_paths = _paths(outer.node)
    return any(
        path[: len(each)] == each for path in _paths(expression.node) for each in outer_paths
    )


@lru_cache(256)
def _members(expression: Expression) -> list[Path]:
    return [path for path in _paths(expression.node) if path != ()]


def reads_any(expression: Expression, record: Any) -> bool:
    """Return whether a record has any of the members that an expression reads."""
    return not all(_lacks(record, path) for path in _members(expression))


def missing(expression: Expression, document: Any, result: Any) -> list[str]:
    """Return the members that an expression reads and a document lacks, if its result is null."""
    lacked = [path for path in _paths(expression.node) if result is None and _lacks(document, path)]
    names = (".".join("[]" if step is None else step for step in path) for path in lacked)
    return [name.replace(".[]", "[]") for name in names]


def _lacks(value: Any, path: Path) -> bool:
    for i, step in enumerate(path):
        if step is None and isinstance(value, list):
            return all(_lacks(each, path[i + 1 :]) for each in value)
        if not isinstance(value, dict) or step not in value:
            return bool(step)
        value = value[step]
    return False


def _documents(paths: Sequence[Path], values: Sequence[Any]) -> Iterator[Any]:
    """Yield documents with each of the values at each of the paths, up to a bound."""
    for chosen in islice(product(values, repeat=len(paths)), _MAX_DOCUMENTS):
        yield _document(dict(zip(paths, chosen, strict=True)))


def _document(values: Mapping[Path, Any]) -> Any:
    inner: dict[str | None, dict[Path, Any]] = {}
    for path, value in values.items():
        if path and value is not _GONE and not (len(path) == 1 and value is _MISSING):
            inner.setdefault(path[0], {})[path[1:]] = value
    if not inner and values.get((), _MISSING) is not _MISSING:
        return values[()]
    if None in inner:
        return [_document(inner[None])]
    return {"": _OTHER, **{str(name): _document(each) for name, each in inner.items()}}


def _paths(node: Node) -> list[Path]:
    """Return where the values are that an expression reads."""
    kind, children = node["type"], node["children"]
    if kind == "field":
        return [(node["value"],)]
    if kind in ("current", "identity"):
        return [()]
    if kind in ("index", "slice"):
        return [_LIST]
    inner = [_paths(each) for each in children]
    if kind.endswith("projection"):  # of a list, unless a slice or [] has made it one
        is_list = children[0]["type"] in ("flatten", "index_expression")
        step: Path = ("",) if kind == "value_projection" else () if is_list else _LIST
        inner = [inner[0], [step], [path for each in inner[1:] for path in each]]
    elif kind == "flatten":
        inner.append([_LIST])
    elif kind == "pipe" and children[0]["type"].endswith("projection"):
        inner[1] = [path[1:] if path[:1] == _LIST else path for path in inner[1]]
    elif kind not in ("subexpression", "index_expression", "pipe"):
        return list(dict.fromkeys(path for each in inner for path in each))
    found: list[Path] = [()]
    for each in inner:
        found = [before + after for before in found for after in each]
    return list(dict.fromkeys(found))

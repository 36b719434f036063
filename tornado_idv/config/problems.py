"""Turns validation errors into problems with their positions in the file.

No message repeats a value, which may be a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from tornado_idv import yaml_loader
from tornado_idv.config.locations import (
    Location,
    Schema,
    SchemaLocator,
    Steps,
    dotted,
    is_safe_to_print,
)
from tornado_idv.errors import Problem

_PYDANTIC = frozenset(get_args(ErrorType))
_MESSAGES = {
    "assertion_error": "{error}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "missing": "is missing",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_too_short": "its length must be at least {min_length}",
    "string_too_long": "its length must be at most {max_length}",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "too few items: at least {min_length}, not {actual_length}",
    "too_long": "too many items: at most {max_length}, not {actual_length}",
    "value_error": "{error}",
}
_EXPECTED = {
    "bool": "true or false",
    "bytes": "text",
    "date": "a date",
    "datetime": "a date and time",
    "decimal": "a number",
    "dict": "a mapping",
    "finite": "a finite number",
    "float": "a number",
    "frozen": "a list",
    "int": "a whole number",
    "list": "a list",
    "model": "a mapping",
    "path": "a path",
    "set": "a list",
    "string": "text",
    "time": "a time or duration",
    "timezone": "a time with its time zone",
    "tuple": "a list",
    "url": "a URL",
    "uuid": "a UUID",
}


def problems(error: ValidationError, schema: Schema, tree: Any, file: str) -> Iterator[Problem]:
    """Yield a problem for every error that pydantic found in ``tree``."""
    locator = SchemaLocator(schema, tree)
    details = error.errors(include_url=False, include_input=False)
    misspelt = set(_misspelt(locator, details))
    # pydantic reports a list in which every item is wrong as too short as well.
    around = {detail["loc"][:end] for detail in details for end in range(len(detail["loc"]))}
    for detail in details:
        kind, steps = detail["type"], detail["loc"]
        if (kind, steps) in misspelt or (kind == "too_short" and steps in around):
            continue
        location = _location(locator, detail)
        path = location.path
        mark: yaml_loader.Mark = location.value.mark
        if kind == "extra_forbidden":
            name = location.value.key(steps[-1])
            path, mark = (*path, name) if is_safe_to_print(name) else path, name.mark
        yield Problem(file, *mark, dotted(path), _message(detail, location))


def _misspelt(
    locator: SchemaLocator, details: Sequence[ErrorDetails]
) -> Iterator[tuple[str, Steps]]:
    """Errors about a missing setting that is there under a misspelt name."""
    unknown = (detail for detail in details if detail["type"] == "extra_forbidden")
    for detail in unknown:
        *around, name = detail["loc"]
        setting = _suggest(str(name), _location(locator, detail).known)
        yield from [("missing", (*around, setting))] if setting else []


def _location(locator: SchemaLocator, detail: ErrorDetails) -> Location:
    if detail["type"] == "extra_forbidden":
        return locator.locate(detail["loc"][:-1])
    location = locator.locate(detail["loc"], missing=detail["type"] == "missing")
    is_tag = detail["type"].startswith("union_tag_")
    if is_tag and isinstance(location.value, yaml_loader.Mapping):
        members: dict[Any, Any] = location.value
        value = members.get(location.tag, members)
        return replace(location, path=(*location.path, location.tag), value=value)
    return location


def _message(error: ErrorDetails, location: Location) -> str:
    """Return what is wrong at ``location``."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _MESSAGES:
        return _MESSAGES[kind].format_map(context)
    if kind in ("literal_error", "enum"):
        return f"must be {context['expected']}".replace("'", "")
    if kind == "extra_forbidden":
        return _unknown(str(error["loc"][-1]), location.known)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        is_tag = location.path[-1] == location.tag
        return _choice(location) if is_tag else _expected("model", location.value)
    if kind in _PYDANTIC:
        return _expected(kind, location.value)
    return error["msg"]  # a plugin's own message


def _choice(location: Location) -> str:
    known = f"the {location.tag}s are {', '.join(location.choices)}"
    if isinstance(location.value, yaml_loader.Mapping):
        return f"is missing; {known}"
    near = get_close_matches(str(location.value), location.choices, n=1, cutoff=0.7)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    return f"unknown {location.tag}; {hint}{known}"


def _unknown(name: str, known: Sequence[str]) -> str:
    near = _suggest(name, known)
    if near is None:
        return f"unknown setting; known here are {', '.join(known)}"
    if name.startswith(f"{near}:"):
        return f'a space is missing after the colon of "{near}"'
    return f'unknown setting; did you mean "{near}"?'


def _suggest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that was probably meant."""
    start, colon, _ = name.partition(":")
    if colon and start in known:
        return start
    return next(iter(get_close_matches(name, known, n=1)), None)


def _expected(kind: str, value: Any) -> str:
    expected = _EXPECTED.get(kind.partition("_")[0])
    if expected is None:
        return "is not valid"
    actual = ""
    if isinstance(value, yaml_loader.Mapping):
        actual = ", not a mapping"
    elif isinstance(value, yaml_loader.Items):
        actual = ", not a list"
    elif expected in ("a mapping", "a list"):
        actual = ", not text" if value else "; it is empty"
    return f"must be {expected}{actual}"

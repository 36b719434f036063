"""Turns validation errors into problems with their positions in the file.

No message repeats a value, which may be a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    dotted,
    is_safe_to_print,
)
from tornado_idv.errors import ConfigError, Problem

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
    "union": "a mapping",
    "url": "a URL",
    "uuid": "a UUID",
}


def problems(error: ValidationError, schema: Schema, tree: Any, file: str) -> Iterator[Problem]:
    """Yield a problem for every error that pydantic found in ``tree``."""
    locator = SchemaLocator(schema, tree)
    details = error.errors(include_url=False, include_input=False)
    unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
    meant = {
        steps: _suggest(str(steps[-1]), locator.locate(steps[:-1]).known)
        for steps in unknown[: ConfigError.MAX_LINES]  # each takes 0.1 ms
    }
    # A misspelt setting is missing under its name, and a list of wrong items is too short.
    follow_ups = {("missing", (*steps[:-1], name)) for steps, name in meant.items()}
    for steps in (detail["loc"] for detail in details):
        follow_ups |= {("too_short", steps[:end]) for end in range(len(steps))}
    for detail in details:
        kind, steps = detail["type"], detail["loc"]
        if (kind, steps) in follow_ups:
            continue
        is_unknown = kind == "extra_forbidden"
        location = locator.locate(steps[:-1] if is_unknown else steps, missing=kind == "missing")
        path, value = location.path, location.value
        if is_unknown:
            value = value.key(steps[-1])
            path = (*path, value) if is_safe_to_print(value) else path
            text = _unknown(value, meant.get(steps), location.known)
        elif kind.startswith("union_tag_") and isinstance(value, yaml_loader.Mapping):
            members: dict[Any, Any] = value
            path, value = (*path, location.tag), members.get(location.tag, value)
            text = _choice(location, value)
        else:
            text = _message(detail, value)
        mark: yaml_loader.Mark = value.mark
        yield Problem(file, *mark, dotted(path), text)


def _message(error: ErrorDetails, value: Any) -> str:
    """Return what is wrong with a value."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _MESSAGES:
        return _MESSAGES[kind].format_map(context)
    if kind in ("literal_error", "enum"):
        return f"must be {context['expected']}".replace("'", "")
    return _expected(kind, value) if kind in _PYDANTIC else error["msg"]  # a plugin's own message


def _choice(location: Location, value: Any) -> str:
    known = f"the {location.tag}s are {', '.join(location.choices)}"
    if value is location.value:
        return f"is missing; {known}"
    near = get_close_matches(str(value), location.choices, n=1, cutoff=0.7)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    return f"unknown {location.tag}; {hint}{known}"


def _unknown(name: str, meant: str | None, known: Sequence[str]) -> str:
    if meant is None:
        return f"unknown setting; known here are {', '.join(known)}"
    if name.startswith(f"{meant}:"):
        return f'a space is missing after the colon of "{meant}"'
    return f'unknown setting; did you mean "{meant}"?'


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

"""Messages for validation errors; none repeats a value, which may be a secret."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, get_args

from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from tornado_idv import yaml_loader
from tornado_idv.config.locations import Location
from tornado_idv.config.names import unknown

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


def message(error: ErrorDetails, location: Location) -> str:
    """Return what is wrong at ``location``."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _MESSAGES:
        return _MESSAGES[kind].format_map(context)
    if kind in ("literal_error", "enum"):
        return f"must be {context['expected']}".replace("'", "")
    if kind == "extra_forbidden":
        return unknown(str(error["loc"][-1]), location.known)
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


def _expected(kind: str, value: Any) -> str:
    expected = _EXPECTED.get(kind.partition("_")[0])
    if expected is None:
        return "is not valid"
    return f"must be {expected}{_actual(expected, value)}"


def _actual(expected: str, value: Any) -> str:
    if isinstance(value, yaml_loader.Mapping):
        return ", not a mapping"
    if isinstance(value, yaml_loader.Items):
        return ", not a list"
    if expected not in ("a mapping", "a list"):
        return ""
    return ", not text" if value else "; it is empty"

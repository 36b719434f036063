"""Plain sentences for what pydantic finds wrong; none repeats a value, which may be a secret."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, get_args

from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from tornado_idv import yamltext
from tornado_idv.config.names import unknown
from tornado_idv.config.places import Place

_PYDANTIC = frozenset(get_args(ErrorType))
_TOLD = {
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
_WANTED = {
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


def sentence(error: ErrorDetails, place: Place) -> str:
    """What is wrong at ``place``."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _TOLD:
        return _TOLD[kind].format_map(context)
    if kind in ("literal_error", "enum"):
        return f"must be {context['expected']}".replace("'", "")
    if kind == "extra_forbidden":
        return unknown(str(error["loc"][-1]), place.known)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _choice(place) if place.path[-1] == place.by else _wanted("model", place.value)
    if kind in _PYDANTIC:
        return _wanted(kind, place.value)
    return error["msg"]  # a plugin's own words


def _choice(place: Place) -> str:
    known = f"the {place.by}s are {', '.join(place.choices)}"
    if isinstance(place.value, yamltext.Mapping):
        return f"is missing; {known}"
    near = get_close_matches(str(place.value), place.choices, n=1, cutoff=0.7)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    return f"unknown {place.by}; {hint}{known}"


def _wanted(kind: str, value: Any) -> str:
    wanted = _WANTED.get(kind.partition("_")[0])
    if wanted is None:
        return "is not valid"
    return f"must be {wanted}{_instead(wanted, value)}"


def _instead(wanted: str, value: Any) -> str:
    if isinstance(value, yamltext.Mapping):
        return ", not a mapping"
    if isinstance(value, yamltext.Items):
        return ", not a list"
    if wanted not in ("a mapping", "a list"):
        return ""
    return ", not text" if value else "; nothing is written here"

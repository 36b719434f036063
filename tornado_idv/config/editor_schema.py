"""A JSON Schema for editors, which type a scalar by its spelling where we read it as text.

To an editor ``port: "8080"`` is a string and ``id: 12`` a number; both are right. A reference
such as ``${env:PORT}`` may stand in place of any scalar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

_REFERENCE = r"\$\{"
_WHOLE_NUMBER = "^[0-9]{1,15}$"
_NUMBER = r"^[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?$"
_SWITCHES = ("true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "1", "0")
_SPELLINGS = {
    "number": ("7", "7" * 16, "7" * 64, "1.5"),
    "boolean": ("true", "false"),
    "null": ("",),
}
"""Texts that an editor takes for another type than string."""


def for_editors(schema: Mapping[str, Any]) -> Schema:
    """Return a copy of a schema that accepts every spelling of the same text."""
    copy = dict(schema)
    for name in ("$defs", "properties"):
        if name in copy:
            copy[name] = {key: for_editors(each) for key, each in copy[name].items()}
    for name in ("anyOf", "oneOf", "prefixItems"):
        if name in copy:
            copy[name] = [for_editors(each) for each in copy[name]]
    for name in ("additionalProperties", "items"):
        if isinstance(copy.get(name), dict):
            copy[name] = for_editors(copy[name])
    if "discriminator" in copy:
        copy["oneOf"].append(_chosen_by_reference(copy["discriminator"]["propertyName"]))
    return _with_spellings(copy)


def _chosen_by_reference(name: str) -> Schema:
    chosen = {"type": "string", "pattern": _REFERENCE}
    return {"type": "object", "properties": {name: chosen}, "required": [name]}


def _with_spellings(schema: Schema) -> Schema:
    """The schema of a scalar, widened; any other as it is."""
    kind = schema.get("type")
    if "enum" in schema or "format" in schema:
        words = {name: schema.pop(name) for name in ("enum", "format", "type") if name in schema}
        return {**schema, "anyOf": [words, {"type": "string", "pattern": _REFERENCE}]}
    if kind == "string" and "const" not in schema:
        return {**schema, **_text(schema)}
    if kind == "boolean":
        any_case = "|".join(
            "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in word) for word in _SWITCHES
        )
        either = _or_reference(["boolean", "integer"], f"^({any_case})$")
        return {**schema, **either, "minimum": 0, "maximum": 1}
    if kind in ("integer", "number"):
        pattern = _WHOLE_NUMBER if kind == "integer" else _NUMBER
        return {**schema, **_or_reference([kind], pattern)}
    return schema


def _or_reference(types: list[str], pattern: str) -> Schema:
    return {"type": ["string", *types], "pattern": f"{pattern}|{_REFERENCE}"}


def _text(schema: Schema) -> Schema:
    pattern, shortest = schema.get("pattern"), schema.get("minLength", 0)
    types = [
        kind
        for kind, spellings in _SPELLINGS.items()
        if any(len(text) >= shortest and re.search(pattern or "", text) for text in spellings)
    ]
    return _or_reference(types, pattern) if pattern else {"type": ["string", *types]}

"""The JSON Schema of `config.yaml` for editors.

The service reads all scalars as text. An editor infers types from the spelling: it takes
``port: "8080"`` for a string, and ``id: 12`` for a number. So the schema accepts both types. A
reference such as ``${env:PORT}`` may replace any scalar.
"""

import re
from typing import Any

from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from tornado_idv.config.kinds import settings_type
from tornado_idv.config.problems import SchemaGenerator
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.units import format_duration, format_size

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
"""Examples of unquoted YAML values, by the type that an editor infers. Strings are left out."""
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


class _Generator(SchemaGenerator):
    """Generates a schema. It adds units to defaults, and renames ``ge`` to ``minimum``, etc."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        described = super().default_schema(schema)
        default = described.pop("default", None)
        if default is None or isinstance(default, dict):
            return described  # an absent section has the defaults of its members
        if described.get("type") == "string" and not isinstance(default, str):
            is_duration = isinstance(default, float)
            default = format_duration(default) if is_duration else format_size(default)
        return {**described, "default": default}

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        # pydantic leaves its own names of bounds in the schema of types parsed from text.
        described = super().generate_inner(schema)
        return {_BOUNDS.get(word, word): each for word, each in described.items()}


def json_schema(kinds: Kinds) -> Schema:
    """Return the JSON Schema (2020-12) of a configuration file for these kinds of backend."""
    return {
        "$schema": _Generator.schema_dialect,
        **_for_editors(settings_type(kinds).model_json_schema(schema_generator=_Generator)),
        "title": "tornado-idv configuration",
    }


def _for_editors(node: Any) -> Any:
    """Return a copy of a schema. Its scalars may be quoted, unquoted, or a ``${…}`` reference."""
    if isinstance(node, list):
        return [_for_editors(each) for each in node]
    if not isinstance(node, dict):
        return node
    copy = {name: _for_editors(each) for name, each in node.items()}
    if "discriminator" in copy:
        name = copy["discriminator"]["propertyName"]
        chosen = {"type": "string", "pattern": _REFERENCE}
        copy["oneOf"].append({"type": "object", "properties": {name: chosen}, "required": [name]})
    return _with_spellings(copy)


def _with_spellings(schema: Schema) -> Schema:
    """Let schemas of scalars accept quoted, unquoted and ``${…}`` values. Keep other schemas."""
    kind = schema.get("type")
    if isinstance(schema.get("enum"), list) or isinstance(schema.get("format"), str):
        words = {name: schema.pop(name) for name in ("enum", "format", "type") if name in schema}
        return {**schema, "anyOf": [words, {"type": "string", "pattern": _REFERENCE}]}
    if kind == "string" and "const" not in schema:
        pattern, shortest = schema.get("pattern"), schema.get("minLength", 0)
        types = [
            each
            for each, texts in _SPELLINGS.items()
            if any(len(text) >= shortest and re.search(pattern or "", text) for text in texts)
        ]
        either = _or_reference(types, pattern) if pattern else {"type": ["string", *types]}
        return {**schema, **either}
    if kind == "boolean":
        any_case = "|".join(
            "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in word) for word in _SWITCHES
        )
        either = _or_reference(["boolean", "integer"], f"^({any_case})$")
        return {**schema, **either, "minimum": 0, "maximum": 1}
    if kind in ("integer", "number"):
        return {**schema, **_or_reference([kind], _WHOLE_NUMBER if kind == "integer" else _NUMBER)}
    return schema


def _or_reference(types: list[str], pattern: str) -> Schema:
    return {"type": ["string", *types], "pattern": f"{pattern}|{_REFERENCE}"}

"""The JSON Schema of `config.yaml`, for editors and for locating validation errors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from tornado_idv.backend import AnyBackend
from tornado_idv.config.editor_schema import for_editors
from tornado_idv.config.kinds import settings_type
from tornado_idv.config.settings import Settings
from tornado_idv.units import format_duration, format_size

_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}


class _Generator(GenerateJsonSchema):
    """Describes the file; pydantic by itself describes the values that it is parsed to."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        # An unused setting is omitted; null would be read as text.
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        described = super().default_schema(schema)
        default = described.pop("default", None)
        if default is None or isinstance(default, dict):
            return described  # an absent section has the defaults of its members
        if described.get("type") == "string" and not isinstance(default, str):
            default = (
                format_duration(default) if isinstance(default, float) else format_size(default)
            )
        return {**described, "default": default}

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        # For types that parse text, pydantic leaves its own names of bounds in the schema.
        described = super().generate_inner(schema)
        return {_BOUNDS.get(word, word): each for word, each in described.items()}

    def handle_invalid_for_json_schema(self, *_: Any, **__: Any) -> JsonSchemaValue:
        # An option that JSON Schema cannot describe accepts anything.
        return {}


def json_schema(kinds: Mapping[str, type[AnyBackend]]) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration file for these kinds of backend."""
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        **for_editors(schema_of(settings_type(kinds))),
        "title": "tornado-idv configuration",
    }


@lru_cache(maxsize=4)
def schema_of(model: type[Settings]) -> Mapping[str, Any]:
    """Return the schema of a settings model; it must not be changed."""
    return model.model_json_schema(schema_generator=_Generator)

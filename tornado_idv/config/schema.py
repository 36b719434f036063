"""The JSON Schema of the settings, to locate validation errors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from tornado_idv.config.settings import Settings
from tornado_idv.units import format_duration, format_size

Schema = dict[str, Any]

_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}


class _Generator(GenerateJsonSchema):
    """Describes the file; pydantic's own schema describes the parsed values."""

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
        # pydantic leaves its own names of bounds in the schema of types parsed from text.
        described = super().generate_inner(schema)
        return {_BOUNDS.get(word, word): each for word, each in described.items()}

    def handle_invalid_for_json_schema(self, *_: Any, **__: Any) -> JsonSchemaValue:
        # JSON Schema cannot describe this option, so the schema accepts anything.
        return {}


@lru_cache(maxsize=4)
def schema_of(model: type[Settings]) -> Schema:
    """Return the schema of a settings model; it must not be changed."""
    return model.model_json_schema(schema_generator=_Generator)

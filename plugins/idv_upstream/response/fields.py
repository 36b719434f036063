"""One field of a user, mapped from a record of the upstream."""

from __future__ import annotations

import json
from typing import Annotated, Any, Self

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from idv_upstream.response.expressions import Expression, ExpressionText, json_type
from tornado_idv import Broken, Options, strict_json

_SCALARS = (str, int, float, bool, type(None))


class FieldOptions(Options):
    """Source of a field in a response."""

    path: ExpressionText | None = None
    """A JMESPath expression on the user's record."""
    value_map: dict[str, str] = Field(default_factory=dict)
    """The field for each value; numbers, true, false and null are written as in JSON."""
    default: str | None = None
    """The field for null, and for a value that ``value_map`` does not name."""
    const: str | None = None
    """A constant, instead of all that."""

    @field_validator("const")
    @classmethod
    def _check_alone(cls, const: str | None, info: ValidationInfo) -> str | None:
        if const is not None and any(info.data.values()):
            raise ValueError("a field with const has nothing else; take one of them away")
        return const

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.path is None and self.const is None:
            raise ValueError("a field needs a source; write path or const")
        return self


def _tag(value: Any) -> str:
    return "text" if isinstance(value, str) else "mapping"


FieldSource = Annotated[
    Annotated[ExpressionText, Tag("text")] | Annotated[FieldOptions, Tag("mapping")],
    Discriminator(_tag),
]
"""A JMESPath expression, or a mapping of `FieldOptions`."""


class MappedField:
    """A compiled field; without options, no record has it."""

    __slots__ = ("_const", "_default", "_map", "expression", "name")

    def __init__(self, name: str, source: FieldSource | None) -> None:
        options = (
            source
            if isinstance(source, FieldOptions)
            else FieldOptions.model_construct(path=source)
        )
        self.name = name
        self.expression = None if options.path is None else Expression(options.path)
        self._const = options.const
        self._default = options.default
        self._map = options.value_map

    def required(self, record: Any) -> str:
        """Return the text of the field; raises `Broken` if there is none."""
        text = self.text(record)
        if text is None:
            raise self.error("is missing")
        return text

    def text(self, record: Any) -> str | None:
        """Return the text of the field; ``None`` if the record has none."""
        if self.expression is None:
            return self._const
        value = self.expression.evaluate(record)
        if self._map:
            value = self._mapped(value)
        if value is None:
            return self._default
        if type(value) is not str:
            hint = ""
            if type(value) in (int, float):
                hint = f"; to_string({self.expression.text}) serves if no zeros in front are lost"
            raise self.error(f"is {json_type(value)}, not text{hint}")
        if not strict_json.is_unicode(value):
            raise self.error("has a lone surrogate")
        return value

    def error(self, what: str) -> Broken:
        """Return an error with the name and the expression of this field."""
        where = f" ({self.expression.text})" if self.expression else ""
        return Broken(f"a wrong record: {self.name}{where} {what}")

    def _mapped(self, value: Any) -> Any:
        if type(value) not in _SCALARS:
            return value
        mapped = self._map.get(value if type(value) is str else json.dumps(value), self._default)
        if mapped is None and value is not None:
            raise self.error("has a value that value_map does not name, and no default")
        return mapped

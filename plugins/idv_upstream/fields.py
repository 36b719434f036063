"""One field of a user, out of the record that another service answered."""

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

from idv_upstream.documents import is_unicode
from idv_upstream.expressions import Expression, ExpressionText, kind_of
from tornado_idv import Broken, Options

_SCALARS = (str, int, float, bool, type(None))


class FieldOptions(Options):
    """Where a field comes from."""

    path: ExpressionText | None = None
    """A JMESPath expression on the user's record."""
    value_map: dict[str, str] = Field(default_factory=dict)
    """What the field is for which value; numbers, true, false and null are written as in JSON."""
    default: str | None = None
    """What it is for null, and for a value that ``value_map`` does not name."""
    const: str | None = None
    """What it always is, instead of all that."""

    @field_validator("const")
    @classmethod
    def _stands_alone(cls, const: str | None, info: ValidationInfo) -> str | None:
        if const is not None and any(info.data.values()):
            raise ValueError("a field with const has nothing else; take one of them away")
        return const

    @model_validator(mode="after")
    def _comes_from_somewhere(self) -> Self:
        if self.path is None and self.const is None:
            raise ValueError("a field comes from somewhere; write path or const")
        return self


def _form(value: Any) -> str:
    return "text" if isinstance(value, str) else "mapping"


FieldSource = Annotated[
    Annotated[ExpressionText, Tag("text")] | Annotated[FieldOptions, Tag("mapping")],
    Discriminator(_form),
]
"""A JMESPath expression, or a mapping with more to say."""


class MappedField:
    """A field as the options say; without any, no record has it."""

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
        """The text of the field; raises `Broken` if there is none."""
        text = self.text(record)
        if text is None:
            raise self.wrong("is missing")
        return text

    def text(self, record: Any) -> str | None:
        """The text of the field; ``None`` if the record has nothing there."""
        if self.expression is None:
            return self._const
        value = self.expression.of(record)
        if self._map:
            value = self._mapped(value)
        if value is None:
            return self._default
        if type(value) is not str:
            hint = ""
            if _is_number(value):
                hint = f"; to_string({self.expression.text}) serves if no zeros in front are lost"
            raise self.wrong(f"is {kind_of(value)}, not text{hint}")
        if not is_unicode(value):
            raise self.wrong("has half a surrogate pair")
        return value

    def wrong(self, what: str) -> Broken:
        """The error that tells what is wrong with this field, and where it was looked for."""
        where = f" ({self.expression.text})" if self.expression else ""
        return Broken(f"a wrong record: {self.name}{where} {what}")

    def _mapped(self, value: Any) -> Any:
        if type(value) not in _SCALARS:
            return value
        mapped = self._map.get(_spelling(value), self._default)
        if mapped is None and value is not None:
            raise self.wrong("has a value that value_map does not name, and no default")
        return mapped


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _spelling(value: Any) -> str:
    """How ``value_map`` writes a value."""
    return value if type(value) is str else json.dumps(value)

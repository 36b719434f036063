"""The settings model for the installed kinds of backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, create_model
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tornado_idv.backend import AnyBackend, BackendOptions
from tornado_idv.config.settings import Settings


@dataclass(frozen=True)
class _ByKind:
    """Validates an entry of ``backends`` with the options type of its ``kind``.

    Not an annotated union: Python reduces a union of one type to the type, and then an
    unknown kind would be reported as many unknown options.
    """

    choices: Mapping[str, type[BackendOptions]]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        if not self.choices:
            return core_schema.no_info_plain_validator_function(_refuse)
        choices: dict[Any, CoreSchema] = {
            kind: handler.generate_schema(options) for kind, options in self.choices.items()
        }
        return core_schema.tagged_union_schema(choices, discriminator="kind")

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(schema) if self.choices else {"not": {}}


def settings_type(kinds: Mapping[str, type[AnyBackend]]) -> type[Settings]:
    """Return the settings model for these kinds of backend, by their names in ``kind:``."""
    return _settings_type(tuple(sorted(kinds.items(), key=itemgetter(0))))


@lru_cache(maxsize=4)  # making one takes 0.1 s
def _settings_type(kinds: tuple[tuple[str, type[AnyBackend]], ...]) -> type[Settings]:
    field = Settings.model_fields["backends"]
    by_kind = _ByKind({kind: _options(kind, backend) for kind, backend in kinds})
    entries = tuple[Annotated[BackendOptions, by_kind], ...]
    return create_model(
        "Settings",
        __base__=Settings,
        __doc__=Settings.__doc__,
        backends=(entries, Field(min_length=1, description=field.description)),
    )


def _options(kind: str, backend: type[AnyBackend]) -> type[BackendOptions]:
    base = backend.options_type
    only: Any = Literal[kind]
    return create_model(
        base.__name__,
        __base__=base,
        __doc__=base.__doc__,
        __module__=base.__module__,
        kind=(only, Field(description=base.model_fields["kind"].description)),
    )


def _refuse(_: object) -> BackendOptions:
    raise PydanticCustomError("no_kinds", "no kind of backend is installed; install a plugin")

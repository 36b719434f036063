"""The settings model for the installed kinds of backend."""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    PlainValidator,
    WithJsonSchema,
    create_model,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tornado_idv.backend import AnyBackend, BackendOptions
from tornado_idv.config.settings import Settings


def settings_type(
    kinds: Mapping[str, type[AnyBackend]], used: Container[str] | None = None
) -> type[Settings]:
    """Return the settings model for these kinds of backend, by their names in ``kind:``.

    Only the kinds in ``used`` (default: all) are imported; the options of others are not described.
    """
    names = sorted(kinds)
    wanted = [kind for kind in names if used is None or kind in used]
    return _settings_type(tuple(names), tuple((kind, kinds[kind]) for kind in wanted))


@lru_cache(maxsize=4)  # making one takes 0.1 s
def _settings_type(
    names: tuple[str, ...], used: tuple[tuple[str, type[AnyBackend]], ...]
) -> type[Settings]:
    field = Settings.model_fields["backends"]
    entry: Any = Annotated[BackendOptions, PlainValidator(_refuse), WithJsonSchema({"not": {}})]
    if names:
        choices = {kind: _options(kind, backend) for kind, backend in used}
        entry = _entry({kind: choices.get(kind) for kind in names})
    return create_model(
        "Settings",
        __base__=Settings,
        __doc__=Settings.__doc__,
        backends=(tuple[entry, ...], Field(min_length=1, description=field.description)),
    )


def _entry(choices: Mapping[str, type[BackendOptions] | None]) -> Any:
    """Return the type of an entry of ``backends``: the options type of its ``kind``.

    Not an annotated union: Python reduces a union of one type to the type, and then an
    unknown kind would be reported as many unknown options.
    """

    def by_kind(_: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        schemas = {
            kind: handler.generate_schema(options) if options else core_schema.any_schema()
            for kind, options in choices.items()
        }
        return core_schema.tagged_union_schema(schemas, discriminator="kind")

    return Annotated[BackendOptions, GetPydanticSchema(by_kind)]


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

"""The settings model for the installed kinds of backend and of shared cache."""

from collections.abc import Container, Mapping
from copy import copy
from functools import cache, lru_cache
from inspect import isclass
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, cast

from pydantic import (
    GetCoreSchemaHandler,
    GetPydanticSchema,
    PlainValidator,
    WithJsonSchema,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tornado_idv.config.settings import Settings
from tornado_idv.errors import StartError
from tornado_idv.features import FEATURES
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.interfaces.shared import SharedCacheOptions
from tornado_idv.options import Options, OptionsT
from tornado_idv.registry import load_class

_Choices = tuple[tuple[str, type[Options] | None], ...]
"""The options model of each kind; ``None`` for a kind that is not imported."""


def settings_type(kinds: Kinds, used: Container[str] | None = None) -> type[Settings]:
    """Return the settings model for these kinds.

    Only kinds with a name in ``used`` (default: all) are imported. For other kinds, the model
    accepts any options.
    """
    return _settings_type(
        _choices(kinds.backends, used, BackendOptions),
        _choices(kinds.shared_caches, used, SharedCacheOptions),
    )


def _choices(
    kinds: Mapping[str, type[Any] | str], used: Container[str] | None, base: type[Options]
) -> _Choices:
    return tuple(
        (kind, _options_type(kind, kinds[kind], base) if used is None or kind in used else None)
        for kind in sorted(kinds)
    )


def _options_type(kind: str, place: type[Any] | str, base: type[Options]) -> type[Options]:
    """Return the options model of a plugin's class. Raises `StartError` for an unusable class."""
    offered: Any = load_class(place)
    options_type = getattr(offered, "options_type", None)
    if not (isclass(offered) and isclass(options_type) and issubclass(options_type, base)):
        text = f"must be a class whose options_type is a subclass of {base.__name__}"
        raise StartError(f'kind "{kind}": {offered!r} {text}')
    if missing := ", ".join(sorted(getattr(offered, "__abstractmethods__", ()))):
        raise StartError(f'kind "{kind}": {offered.__name__} does not implement {missing}')
    return options_type


@lru_cache(maxsize=4)  # making one takes 0.1 s
def _settings_type(backends: _Choices, shared_caches: _Choices) -> type[Settings]:
    backend: Any = _entry(BackendOptions, backends, "backend")
    types = {
        "backends": tuple[backend, ...],
        "shared_cache": _entry(SharedCacheOptions, shared_caches, "shared cache") | None,
    }
    fields: Any = {name: (each, Settings.model_fields[name]) for name, each in types.items()}
    fields |= {name: _section(name) for feature in FEATURES for name in feature.options}
    return _submodel(Settings, **fields)


@cache  # a reload compares sections by their types, too
def _section(name: str) -> tuple[type[Options], FieldInfo]:
    """Return the model of a section with the settings of all features, and the section's field."""
    field = copy(Settings.model_fields[name])
    base: Any = field.annotation
    added = [resolve_name(each.options[name]) for each in FEATURES if name in each.options]
    section: type[Options] = _submodel(base, *added)
    field.default = section()
    return section, field


def _entry(base: type[Options], choices: _Choices, noun: str) -> Any:
    """Return the type of a section whose ``kind`` selects the type of its options.

    An annotated union is not used, because Python reduces a union of one type to that type. If
    only one kind were installed, a wrong ``kind`` would cause an error for each of its options.
    """
    if not choices:

        def refuse(_: object) -> Options:
            text = f"no kind of {noun} is installed; install a plugin"
            raise PydanticCustomError("no_kinds", text)

        return Annotated[base, PlainValidator(refuse), WithJsonSchema({"not": {}})]
    models = {
        kind: options and _submodel(options, kind=(Literal[kind], options.model_fields["kind"]))
        for kind, options in choices
    }

    def by_kind(_: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        schemas = {
            kind: handler.generate_schema(model) if model else core_schema.any_schema()
            for kind, model in models.items()
        }
        return core_schema.tagged_union_schema(schemas, discriminator="kind")

    return Annotated[base, GetPydanticSchema(by_kind)]


def _submodel(base: type[OptionsT], *added: type[Options], **fields: Any) -> type[OptionsT]:
    """Return a subclass of a model, with the fields of the models ``added`` and more ``fields``."""
    bases: Any = (*added, base)
    made = create_model(
        base.__name__,
        __base__=bases,
        __doc__=base.__doc__,
        __module__=base.__module__,
        # Skips pydantic's search for docstrings in source code: it takes 20 ms for each model.
        __cls_kwargs__={"use_attribute_docstrings": False},
        **fields,
    )
    return cast("type[OptionsT]", made)

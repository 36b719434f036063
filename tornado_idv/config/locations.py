"""Locations in the file, as paths; and those of validation errors.

pydantic's locations contain the tags of unions, which are not in the file. Following a
location through the JSON Schema and the file at the same time leaves them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tornado_idv import yaml_loader

Schema = Mapping[str, Any]
Steps = tuple[str | int, ...]

_PLAIN = re.compile(r"[a-z_][a-z0-9_]{0,39}", re.ASCII)


def is_safe_to_print(step: str | int) -> bool:
    """Return whether a step of a path is an index, or looks like the name of a setting.

    Another name may contain a secret: without the space after a colon, YAML reads
    ``token:idv_...`` as one name.
    """
    return isinstance(step, int) or _PLAIN.fullmatch(step) is not None


def dotted(path: Iterable[str | int]) -> str:
    """Return a path in the usual notation, like ``backends[1].columns.nickname``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


class Location(NamedTuple):
    """A location in the file, as far as it exists there.

    ``path`` ends before the first name that must not be printed. ``value`` is the value
    there, or for a missing one, the value that contains it. ``known`` are the settings known
    in it, ``choices`` the values of its member ``tag`` that select a variant.
    """

    path: Steps
    value: Any
    known: Sequence[str]
    tag: str
    choices: Sequence[str]


class SchemaLocator:
    """Finds locations in one file with the schema of its settings."""

    def __init__(self, schema: Schema, tree: Any) -> None:
        self._schema = schema
        self._tree = tree

    def locate(self, steps: Steps, *, missing: bool = False) -> Location:
        """Return the location in the file; with ``missing`` its last step is not there."""
        path: Steps = ()
        value, schemas, is_safe = self._tree, [self._schema], True
        chosen: list[Schema] = []
        for step in steps:
            chosen = [] if chosen else self._chosen(schemas, step)
            if chosen:
                schemas = chosen
            elif _contains(value, step):  # or else it names a type of a union
                variants = self._variants(schemas)
                is_safe = is_safe and (is_safe_to_print(step) or step in _known(variants))
                path = (*path, step) if is_safe else path
                value, schemas = value[step], list(_members(variants, step))
        if missing and is_safe:
            path = (*path, steps[-1])
        tags = (each["discriminator"] for each in schemas if "discriminator" in each)
        tag: Schema = next(tags, {"propertyName": "", "mapping": ()})
        known = _known(self._variants(schemas))
        return Location(path, value, known, tag["propertyName"], list(tag["mapping"]))

    def _variants(self, schemas: Iterable[Schema]) -> list[Schema]:
        found: list[Schema] = []
        for schema in schemas:
            if "$ref" in schema:
                name = schema["$ref"].rpartition("/")[2]
                found += self._variants([self._schema["$defs"][name]])
            elif "properties" not in schema and (inner := schema.get("anyOf", schema.get("oneOf"))):
                found += self._variants(inner)
            else:
                found.append(schema)
        return found

    def _chosen(self, schemas: Iterable[Schema], tag: str | int) -> list[Schema]:
        """Return the variant that pydantic names by its tag, which is not in the file."""
        mappings = [each["discriminator"]["mapping"] for each in schemas if "discriminator" in each]
        return [{"$ref": mapping[tag]} for mapping in mappings if tag in mapping]


def _known(variants: Iterable[Schema]) -> list[str]:
    return [name for each in variants for name in each.get("properties", ())]


def _contains(value: Any, step: int | str) -> bool:
    if isinstance(value, yaml_loader.Items):
        return isinstance(step, int) and step < len(value)
    return isinstance(value, yaml_loader.Mapping) and step in value


def _members(variants: Iterable[Schema], step: int | str) -> Iterable[Schema]:
    for variant in variants:
        if isinstance(step, int):
            items = variant.get("prefixItems", ())
            inner = items[step] if step < len(items) else variant.get("items")
        else:
            inner = variant.get("properties", {}).get(step, variant.get("additionalProperties"))
        if isinstance(inner, Mapping):
            yield inner

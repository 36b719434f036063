"""Locations in the file, as paths; and those of validation errors.

pydantic's locations contain the tags of unions, which are not in the file. Following a
location through the JSON Schema and the file at the same time leaves them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Location:
    """A location in the file, as far as it exists there.

    ``path`` ends before the first name that must not be printed. ``value`` is the value
    there, or for a missing one, the value that contains it. ``known`` are the settings known
    in it, ``choices`` the values of its member ``tag`` that select a variant.
    """

    path: Steps
    value: Any
    known: Sequence[str] = ()
    tag: str = ""
    choices: Sequence[str] = ()


class SchemaLocator:
    """Finds locations in one file with the schema of its settings."""

    def __init__(self, schema: Schema, tree: Any) -> None:
        self._schema = schema
        self._tree = tree

    def locate(self, steps: Sequence[int | str], *, missing: bool = False) -> Location:
        """Return the location in the file; with ``missing`` its last step is not there."""
        path: list[str | int] = []
        value, schemas, is_safe = self._tree, [self._schema], True
        is_tag = False  # the previous step selected a variant, and is not in the file
        for step in steps:
            variants = self._variants(schemas)
            is_tag = not is_tag and (
                len(variants) > 1 or any("discriminator" in schema for schema in schemas)
            )
            if is_tag:
                schemas = self._chosen(schemas, str(step)) or variants
                continue
            if not _contains(value, step):
                break
            is_safe = is_safe and (is_safe_to_print(step) or step in _known(variants))
            path += [step] if is_safe else []
            value, schemas = value[step], list(_members(variants, step))
        if missing and is_safe:
            path.append(steps[-1])
        known = _known(self._variants(schemas))
        choices = (each["discriminator"] for each in schemas if "discriminator" in each)
        choice: Schema = next(choices, {"propertyName": "", "mapping": ()})
        return Location(tuple(path), value, known, choice["propertyName"], list(choice["mapping"]))

    def _resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self._schema["$defs"][schema["$ref"].rpartition("/")[2]]
        return schema

    def _variants(self, schemas: Iterable[Schema]) -> list[Schema]:
        found: list[Schema] = []
        for schema in map(self._resolved, schemas):
            members = schema.get("anyOf") or schema.get("oneOf")
            if members and "properties" not in schema:
                found += self._variants(members)
            else:
                found.append(schema)
        return found

    def _chosen(self, schemas: Iterable[Schema], tag: str) -> list[Schema]:
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

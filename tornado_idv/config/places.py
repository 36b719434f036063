"""From a location in the settings model to the place in the file.

The location that pydantic gives an error names union members on the way, which
nobody wrote; following it through JSON Schema and file at once leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tornado_idv import yamltext
from tornado_idv.config.names import Steps, may_be_told

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """A place in the file, as far as the location could be followed.

    ``path`` ends before a name that may not be told. ``value`` is what stands there
    or, where nothing does, what it is missing in. ``known`` are the settings known
    inside it, ``choices`` the values of the member ``by`` that it must choose from.
    """

    path: Steps
    value: Any
    known: Sequence[str] = ()
    by: str = ""
    choices: Sequence[str] = ()


class Map:
    """Finds places in one file by means of the schema of its settings."""

    def __init__(self, schema: Schema, tree: Any) -> None:
        self._schema = schema
        self._tree = tree

    def place(self, location: Sequence[int | str], *, absent: bool = False) -> Place:
        """The place that ``location`` leads to; ``absent`` if its last step is missing there."""
        path: list[str | int] = []
        value, schemas, told = self._tree, [self._schema], True
        chosen = False  # the step before was the tag of one variant, and no place in the file
        for step in location:
            variants = self._variants(schemas)
            chosen = not chosen and _is_tagged(schemas, variants)
            if chosen:
                schemas = self._chosen(schemas, str(step)) or variants
                continue
            if not _has(value, step):
                break
            told = told and (may_be_told(step) or step in _known(variants))
            path += [step] if told else []
            value, schemas = value[step], list(_inside(variants, step))
        if absent and told:
            path.append(location[-1])
        known = _known(self._variants(schemas))
        return Place(tuple(path), value, known, *self._choice(schemas))

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

    def _choice(self, schemas: Iterable[Schema]) -> tuple[str, Sequence[str]]:
        for schema in schemas:
            if choice := schema.get("discriminator"):
                return choice["propertyName"], list(choice["mapping"])
        return "", ()


def _is_tagged(schemas: Iterable[Schema], variants: Sequence[Schema]) -> bool:
    return len(variants) > 1 or any("discriminator" in schema for schema in schemas)


def _known(variants: Iterable[Schema]) -> list[str]:
    return [name for each in variants for name in each.get("properties", ())]


def _has(value: Any, step: int | str) -> bool:
    if isinstance(value, yamltext.Items):
        return isinstance(step, int) and step < len(value)
    return isinstance(value, yamltext.Mapping) and step in value


def _inside(variants: Iterable[Schema], step: int | str) -> Iterable[Schema]:
    for variant in variants:
        if isinstance(step, int):
            items = variant.get("prefixItems", ())
            inner = items[step] if step < len(items) else variant.get("items")
        else:
            inner = variant.get("properties", {}).get(step, variant.get("additionalProperties"))
        if isinstance(inner, Mapping):
            yield inner

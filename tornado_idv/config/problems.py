"""Turns validation errors into problems with their positions in the file.

A pydantic error has a location: the steps from the root to the value. If a step is the tag of a
union, it is not in the file. The JSON Schema of the settings lists all tags.

No message repeats a value, because it may be a secret.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails, core_schema
from pydantic_core.core_schema import ErrorType

from tornado_idv import yaml_loader
from tornado_idv.errors import ConfigError, Problem
from tornado_idv.features import MISSING

Schema = Mapping[str, Any]
Steps = tuple[str | int, ...]

_PLAIN = re.compile(r"[a-z_][a-z0-9_]{0,39}", re.ASCII)
_PYDANTIC = frozenset(get_args(ErrorType))
_MESSAGES = {
    "assertion_error": "{error}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "missing": "is missing",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_too_short": "its length must be at least {min_length}",
    "string_too_long": "its length must be at most {max_length}",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "too few items: at least {min_length}, not {actual_length}",
    "too_long": "too many items: at most {max_length}, not {actual_length}",
    "value_error": "{error}",
}
_EXPECTED = {
    "bool": "true or false",
    "bytes": "text",
    "date": "a date",
    "datetime": "a date and time",
    "decimal": "a number",
    "dict": "a mapping",
    "finite": "a finite number",
    "float": "a number",
    "frozen": "a list",
    "int": "a whole number",
    "list": "a list",
    "model": "a mapping",
    "path": "a path",
    "set": "a list",
    "string": "text",
    "time": "a time or duration",
    "timezone": "a time with its time zone",
    "tuple": "a list",
    "union": "a mapping",
    "url": "a URL",
    "uuid": "a UUID",
}
_REFUSED = {
    **MISSING,
    "shared_limits": "removed in 1.0: limits apply to each machine separately; remove this "
    "section, and limit the total of all machines in their load balancer, for example by "
    "limit_req in nginx or a stick-table in haproxy",
}
"""Messages for removed settings, by the path."""


def is_safe_to_print(step: str | int) -> bool:
    """Return whether a step of a path is an index, or looks like the name of a setting.

    Any other name may contain a secret: if the space after a colon is missing, YAML reads
    ``token:idv_...`` as one name.
    """
    return isinstance(step, int) or _PLAIN.fullmatch(step) is not None


def dotted(path: Iterable[str | int]) -> str:
    """Return a path in the usual notation, like ``backends[1].columns.nickname``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


class SchemaGenerator(GenerateJsonSchema):
    """Generates a JSON Schema of values as they are in the file, not of parsed values."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        # An unused setting is omitted; null would be read as text.
        return self.generate_inner(schema["schema"])

    def handle_invalid_for_json_schema(self, *_: Any, **__: Any) -> JsonSchemaValue:
        # JSON Schema cannot describe this option, so the schema accepts anything.
        return {}


@lru_cache(maxsize=4)
def _schema_of(model: type[BaseModel]) -> Schema:
    return model.model_json_schema(schema_generator=SchemaGenerator)


def problems(
    error: ValidationError, model: type[BaseModel], tree: Any, file: str
) -> Iterator[Problem]:
    """Yield a problem for each error of pydantic, but none for a consequence of another error."""
    schema = _schema_of(model)
    details = error.errors(include_url=False, include_input=False)
    unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
    meant = {
        steps: _suggest(str(steps[-1]), _locate(schema, tree, steps[:-1]).known)
        for steps in unknown[: ConfigError.MAX_LINES]  # each takes 0.1 ms
    }
    # Pydantic also reports a misspelt setting as missing, and a list with a bad item as too short.
    follow_ups = {("missing", (*steps[:-1], name)) for steps, name in meant.items()}
    for steps in (detail["loc"] for detail in details):
        follow_ups |= {("too_short", steps[:end]) for end in range(len(steps))}
    for detail in details:
        kind, steps = detail["type"], detail["loc"]
        if (kind, steps) in follow_ups:
            continue
        is_unknown = kind == "extra_forbidden"
        known_steps, is_missing = steps[:-1] if is_unknown else steps, kind == "missing"
        location = _locate(schema, tree, known_steps, missing=is_missing)
        path, value = location.path, location.value
        if is_unknown:
            value = value.key(steps[-1])
            path = (*path, value) if is_safe_to_print(value) else path
            text = _REFUSED.get(dotted(path)) or _unknown(value, meant.get(steps), location.known)
        elif kind.startswith("union_tag_") and isinstance(value, yaml_loader.Mapping):
            members: dict[Any, Any] = value
            path, value = (*path, location.tag), members.get(location.tag, value)
            text = _choice(location, value)
        else:
            text = _message(detail, value)
        mark: yaml_loader.Mark = value.mark
        yield Problem(file, *mark, dotted(path), text)


def _message(error: ErrorDetails, value: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _MESSAGES:
        return _MESSAGES[kind].format_map(context)
    if kind in ("literal_error", "enum"):
        return f"must be {context['expected']}".replace("'", "")
    return _expected(kind, value) if kind in _PYDANTIC else error["msg"]  # a plugin's own message


def _choice(location: "Location", value: Any) -> str:
    known = f"the {location.tag}s are {', '.join(location.choices)}"
    if value is location.value:
        return f"is missing; {known}"
    near = get_close_matches(str(value), location.choices, n=1, cutoff=0.7)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    return f"unknown {location.tag}; {hint}{known}"


def _unknown(name: str, meant: str | None, known: Sequence[str]) -> str:
    if meant is None:
        return f"unknown setting; known here are {', '.join(known)}"
    if name.startswith(f"{meant}:"):
        return f'a space is missing after the colon of "{meant}"'
    return f'unknown setting; did you mean "{meant}"?'


def _suggest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name for which ``name`` is probably a typing error, or ``None``."""
    start, colon, _ = name.partition(":")
    if colon and start in known:
        return start
    return next(iter(get_close_matches(name, known, n=1)), None)


def _expected(kind: str, value: Any) -> str:
    expected = _EXPECTED.get(kind.partition("_")[0])
    if expected is None:
        return "is not valid"
    actual = ""
    if isinstance(value, yaml_loader.Mapping):
        actual = ", not a mapping"
    elif isinstance(value, yaml_loader.Items):
        actual = ", not a list"
    elif expected in ("a mapping", "a list"):
        actual = ", not text" if value else "; it is empty"
    return f"must be {expected}{actual}"


class Location(NamedTuple):
    """The place in the file for a location of a pydantic error.

    ``path`` ends before the first name that is not safe to print. ``value`` is the value at the
    place or, for a missing value, the mapping or list around it. ``known`` are the settings allowed
    in ``value``. If a setting in ``value`` selects the type of ``value``, such as ``kind``, ``tag``
    is the name of this setting, and ``choices`` are its possible values.
    """

    path: Steps
    value: Any
    known: Sequence[str]
    tag: str
    choices: Sequence[str]


def _locate(schema: Schema, tree: Any, steps: Steps, *, missing: bool = False) -> Location:
    """Return the location of ``steps``; with ``missing``, the last step is not in the file."""
    path: Steps = ()
    value, schemas, is_safe = tree, [schema], True
    chosen: list[Schema] = []
    for step in steps:
        tags = [each["discriminator"]["mapping"] for each in schemas if "discriminator" in each]
        chosen = [] if chosen else [{"$ref": each[step]} for each in tags if step in each]
        if chosen:  # the variant: its tag is in the location, and not in the file
            schemas = chosen
        elif _contains(value, step):  # otherwise the step names a type of a union
            variants = _variants(schema, schemas)
            is_safe = is_safe and (is_safe_to_print(step) or step in _known(variants))
            path = (*path, step) if is_safe else path
            value, schemas = value[step], list(_members(variants, step))
    if missing and is_safe:
        path = (*path, steps[-1])
    unions = (each["discriminator"] for each in schemas if "discriminator" in each)
    tag: Schema = next(unions, {"propertyName": "", "mapping": ()})
    known = _known(_variants(schema, schemas))
    return Location(path, value, known, tag["propertyName"], list(tag["mapping"]))


def _variants(root: Schema, schemas: Iterable[Schema]) -> list[Schema]:
    found: list[Schema] = []
    for schema in schemas:
        inner = schema.get("anyOf") or schema.get("oneOf")
        if "$ref" in schema:
            found += _variants(root, [root["$defs"][schema["$ref"].rpartition("/")[2]]])
        elif inner and "properties" not in schema:
            found += _variants(root, inner)
        else:
            found.append(schema)
    return found


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

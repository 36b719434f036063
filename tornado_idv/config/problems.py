"""Turns validation errors into problems with their positions in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tornado_idv import yaml_loader
from tornado_idv.config.locations import Location, Schema, SchemaLocator
from tornado_idv.config.messages import message
from tornado_idv.config.names import Steps, dotted, is_safe_to_print, suggest
from tornado_idv.errors import Problem

_MAX_SUGGESTIONS = 100
"""Unknown names that are compared with the known ones, for 0.1 ms each."""


def problems(error: ValidationError, schema: Schema, tree: Any, file: str) -> Iterator[Problem]:
    """Yield a problem for every error that pydantic found in ``tree``."""
    locator = SchemaLocator(schema, tree)
    details = error.errors(include_url=False, include_input=False)
    misspelt = set(_misspelt(locator, details))
    # pydantic reports a list in which every item is wrong as too short as well.
    around = {detail["loc"][:end] for detail in details for end in range(len(detail["loc"]))}
    suggestions = iter(range(_MAX_SUGGESTIONS))
    for detail in details:
        kind, steps = detail["type"], detail["loc"]
        if (kind, steps) in misspelt or (kind == "too_short" and steps in around):
            continue
        location = _location(locator, detail)
        path = location.path
        mark: yaml_loader.Mark = location.value.mark
        if kind == "extra_forbidden":
            name = location.value.key(steps[-1])
            path, mark = (*path, name) if is_safe_to_print(name) else path, name.mark
            if next(suggestions, None) is None:
                location = replace(location, known=())
        yield Problem(file, *mark, dotted(path), message(detail, location))


def _misspelt(
    locator: SchemaLocator, details: Sequence[ErrorDetails]
) -> Iterator[tuple[str, Steps]]:
    """Errors about a missing setting that is there under a misspelt name."""
    unknown = (detail for detail in details if detail["type"] == "extra_forbidden")
    for detail in islice(unknown, _MAX_SUGGESTIONS):
        *around, name = detail["loc"]
        setting = suggest(str(name), _location(locator, detail).known)
        yield from [("missing", (*around, setting))] if setting else []


def _location(locator: SchemaLocator, detail: ErrorDetails) -> Location:
    if detail["type"] == "extra_forbidden":
        return locator.locate(detail["loc"][:-1])
    location = locator.locate(detail["loc"], missing=detail["type"] == "missing")
    is_tag = detail["type"].startswith("union_tag_")
    if is_tag and isinstance(location.value, yaml_loader.Mapping):
        members: dict[Any, Any] = location.value
        value = members.get(location.tag, members)
        return replace(location, path=(*location.path, location.tag), value=value)
    return location

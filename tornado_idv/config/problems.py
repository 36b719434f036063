"""What validation found, as problems at their places in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tornado_idv import yamltext
from tornado_idv.config.names import Steps, dotted, may_be_told, meant
from tornado_idv.config.places import Map, Place, Schema
from tornado_idv.config.sentences import sentence
from tornado_idv.errors import Problem

_MAX_SUGGESTIONS = 100
"""Unknown names that are compared with the known ones; it takes 0.1 ms each."""


def problems(error: ValidationError, schema: Schema, tree: Any, file: str) -> Iterator[Problem]:
    """Every error that pydantic found in ``tree``, told in our words."""
    chart = Map(schema, tree)
    details = error.errors(include_url=False, include_input=False)
    misspelt = set(_misspelt(chart, details))
    # A list of which all items are wrong is reported as too short as well.
    around = {detail["loc"][:end] for detail in details for end in range(len(detail["loc"]))}
    suggestions = iter(range(_MAX_SUGGESTIONS))
    for detail in details:
        kind, location = detail["type"], detail["loc"]
        if (kind, location) in misspelt or (kind == "too_short" and location in around):
            continue
        place = _place(chart, detail)
        path = place.path
        mark: yamltext.Mark = place.value.mark
        if kind == "extra_forbidden":
            name = place.value.key(location[-1])
            path, mark = (*path, name) if may_be_told(name) else path, name.mark
            if next(suggestions, None) is None:
                place = replace(place, known=())
        yield Problem(file, *mark, dotted(path), sentence(detail, place))


def _misspelt(chart: Map, details: Sequence[ErrorDetails]) -> Iterator[tuple[str, Steps]]:
    """What is missing, and where, only since its name was written in another way."""
    unknown = (detail for detail in details if detail["type"] == "extra_forbidden")
    for detail in islice(unknown, _MAX_SUGGESTIONS):
        *around, name = detail["loc"]
        setting = meant(str(name), _place(chart, detail).known)
        yield from [("missing", (*around, setting))] if setting else []


def _place(chart: Map, detail: ErrorDetails) -> Place:
    if detail["type"] == "extra_forbidden":
        return chart.place(detail["loc"][:-1])
    place = chart.place(detail["loc"], absent=detail["type"] == "missing")
    if detail["type"].startswith("union_tag_") and isinstance(place.value, yamltext.Mapping):
        members: dict[Any, Any] = place.value
        value = members.get(place.by, members)
        return replace(place, path=(*place.path, place.by), value=value)
    return place

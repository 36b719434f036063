"""What validation found, as problems at their places in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tornado_idv import yamltext
from tornado_idv.config.names import Steps, dotted, may_be_told, meant
from tornado_idv.config.places import Map, Place, Schema
from tornado_idv.config.sentences import sentence
from tornado_idv.errors import Problem


def problems(error: ValidationError, schema: Schema, tree: Any, file: str) -> Iterator[Problem]:
    """Every error that pydantic found in ``tree``, told in our words."""
    chart = Map(schema, tree)
    details = error.errors(include_url=False, include_input=False)
    misspelt = set(_misspelt(chart, details))
    for detail in details:
        if (detail["type"], detail["loc"]) in misspelt or _only_short_of_bad_items(detail, details):
            continue
        place = _place(chart, detail)
        path = place.path
        mark: yamltext.Mark = place.value.mark
        if detail["type"] == "extra_forbidden":
            name = next(each for each in place.value if each == detail["loc"][-1])
            path, mark = (*path, name) if may_be_told(name) else path, name.mark
        yield Problem(file, *mark, dotted(path), sentence(detail, place))


def _misspelt(chart: Map, details: Sequence[ErrorDetails]) -> Iterator[tuple[str, Steps]]:
    """What is missing, and where, only since its name was written in another way."""
    for detail in details:
        if detail["type"] == "extra_forbidden":
            *around, name = detail["loc"]
            setting = meant(str(name), _place(chart, detail).known)
            yield from [("missing", (*around, setting))] if setting else []


def _only_short_of_bad_items(detail: ErrorDetails, details: Sequence[ErrorDetails]) -> bool:
    """Whether a list is told to be too short only for the items in it that are wrong."""
    location = detail["loc"]
    return detail["type"] == "too_short" and any(
        len(other["loc"]) > len(location) and other["loc"][: len(location)] == location
        for other in details
    )


def _place(chart: Map, detail: ErrorDetails) -> Place:
    if detail["type"] == "extra_forbidden":
        return chart.place(detail["loc"][:-1])
    place = chart.place(detail["loc"], absent=detail["type"] == "missing")
    if detail["type"].startswith("union_tag_") and isinstance(place.value, yamltext.Mapping):
        members: dict[Any, Any] = place.value
        value = members.get(place.by, members)
        return replace(place, path=(*place.path, place.by), value=value)
    return place

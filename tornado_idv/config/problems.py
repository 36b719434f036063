"""What validation found, as problems at their places in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tornado_idv import yamltext
from tornado_idv.config.places import Map, Place, Schema
from tornado_idv.config.sentences import sentence
from tornado_idv.errors import Problem


def problems(error: ValidationError, schema: Schema, tree: Any, file: str) -> Iterator[Problem]:
    """Every error that pydantic found in ``tree``, told in our words."""
    chart = Map(schema, tree)
    details = error.errors(include_url=False, include_input=False)
    for detail in details:
        if _follows_from_another(detail, details):
            continue
        place = _place(chart, detail)
        mark: yamltext.Mark = place.value.mark
        if detail["type"] == "extra_forbidden":
            mark = yamltext.locate(tree, place.path)
        yield Problem(file, *mark, place.dotted, sentence(detail, place))


def _follows_from_another(detail: ErrorDetails, details: Sequence[ErrorDetails]) -> bool:
    """Whether a list is told to be too short only for the items in it that are wrong."""
    location = detail["loc"]
    return detail["type"] == "too_short" and any(
        len(other["loc"]) > len(location) and other["loc"][: len(location)] == location
        for other in details
    )


def _place(chart: Map, detail: ErrorDetails) -> Place:
    place = chart.place(detail["loc"], absent=detail["type"] == "missing")
    if detail["type"].startswith("union_tag_") and isinstance(place.value, yamltext.Mapping):
        members: dict[Any, Any] = place.value
        value = members.get(place.by, members)
        return replace(place, path=(*place.path, place.by), value=value)
    return place

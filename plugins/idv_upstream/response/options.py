"""The option ``response``: where the user is in a response."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import islice, product
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from tornado_idv import Broken, Options, WholeNumber
from tornado_idv.kit.mapping import (
    Expression,
    ExpressionText,
    FieldSource,
    ListText,
    is_falsy,
    nodes_of,
)

_OTHER = "text that no expression names"
_MAX_DOCUMENTS = 5_000
_QUOTED_NAME = re.compile('[!=]=\\s*"')


class Outcome(StrEnum):
    """Handling of a response."""

    READ = "read"
    NOT_KNOWN = "not_known"
    UNAVAILABLE = "unavailable"
    BROKEN = "broken"


StatusOptions = dict[Annotated[WholeNumber, Field(ge=200, le=599)], Outcome]
"""What single statuses mean, where that differs from the default."""

_LIKE_404 = (204, 410)
_DEFAULTS: Mapping[int, Outcome] = {
    200: Outcome.READ,
    **dict.fromkeys((404, *_LIKE_404), Outcome.NOT_KNOWN),
    **dict.fromkeys((408, 429, *range(500, 1000)), Outcome.UNAVAILABLE),
}


def outcome(status: int, overrides: Mapping[int, Outcome]) -> Outcome:
    """Return the outcome of a status.

    204 and 410 mean what 404 does: where that is a mistake, so are these. Any other status is
    broken: refused credentials (401, 403, 407) are ours, never the client's, and redirects are
    not followed.
    """
    configured = overrides.get(status) or (overrides.get(404) if status in _LIKE_404 else None)
    return configured or _DEFAULTS.get(status, Outcome.BROKEN)


class ResponseOptions(Options):
    """Position of the user in a response."""

    found_when: ExpressionText | None = None
    """An expression on the whole response; if its result is false, empty or null, the user is
    not known there."""
    unavailable_when: ExpressionText | None = None
    """A condition on the whole response: if it is true, the upstream is unavailable, whatever the
    status says."""
    broken_when: ExpressionText | None = None
    """A condition on the whole response: if it is true, the upstream rejects the request, such as
    our credentials."""
    error: ExpressionText | None = None
    """An expression on a response that is no user, whatever its status, for a message in the log;
    the requested value, long numbers, mail addresses and secrets are masked."""
    complete_when: ExpressionText | None = None
    """A condition on the whole response that must be true before "not known" or a single user is
    believed: that no further page exists."""
    select: ListText | None = None
    """An expression for the user's record, or a list of them; the whole response unless
    set. An empty list means that the user is not known there."""
    pick: Literal["one", "first"] = "one"
    """Whether a list of more than one is an error (one), or its first is the user (first)."""
    match: Literal["all", "echo"] = "all"
    """Whether all records of a list are meant (all), or only those with the requested nickname or
    card number (echo), for a search that means "contains" or "starts with"."""
    id: FieldSource | None = None
    """The id of the user in the response to a request with ``then``."""
    plan: FieldSource
    """The plan."""
    card_number: FieldSource | None = None
    """The card number, as text of digits."""
    nickname: FieldSource | None = None
    """The nickname, with or without ``@``."""
    profile_url: FieldSource | None = None
    """The profile URL; without it, it follows from the nickname."""
    check_echo: bool = True
    """Whether the response must hold the requested nickname or card number. Without it, any
    user is taken for the requested one."""
    not_known_when: ExpressionText | None = None
    """A condition that must be true for the body of a response whose status says that the
    user is not known, so that a wrong ``base_url`` is not taken for that. A user for whose record
    it is true, such as a disabled one, is not known either."""
    media_type: Literal["json", "any"] = "json"
    """Whether the media type of a response must be JSON."""

    @model_validator(mode="after")
    def _check_required(self) -> Self:
        needed = {"card_number": self.card_number, "nickname": self.nickname}
        missing = [name for name, source in needed.items() if source is None]
        if self.check_echo and missing:
            raise ValidationError.from_exception_data(
                "response",
                [InitErrorDetails(type="missing", loc=(name,), input=None) for name in missing],
            )
        if self.match == "echo" and not (self.check_echo and self.select is not None):
            raise ValueError("match: echo needs select, which gives the list, and check_echo")
        return self

    def warnings(self) -> Iterator[str]:
        """Describe expressions that hide an error or a further page."""
        texts = (self.unavailable_when, self.broken_when)
        errors = [Expression(text) for text in texts if text is not None]
        for each in errors:
            if _QUOTED_NAME.search(each.text):
                yield (
                    f"{each.text} compares with a member of the response, so it may never be true: "
                    "text stands in single quotes, and double quotes are for names"
                )
        hiding: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (
            ("found_when", is_falsy, "is false", "error != 'no such user'"),
            ("select", lambda each: each == [], "gives an empty list", "users, without a default"),
            ("not_known_when", lambda each: not is_falsy(each), "is true", "state == 'disabled'"),
        )
        for name, hides, result, example in hiding:
            if (text := getattr(self, name)) is None:
                continue
            expression, is_on_record = Expression(text), name == "not_known_when"
            kinds = [node["type"] for node in nodes_of(expression.node)]
            if "filter_projection" in kinds and not is_on_record:
                yield (
                    f"response.{name} ({text}) has a filter: records that it leaves out are read "
                    'as "not found", all of them if their member has another name; select the '
                    "whole list, and write not_known_when for users such as disabled ones"
                )
            elif any(map(hides, _results_for_others(expression, [] if is_on_record else errors))):
                yield (
                    f"response.{name} ({text}) {result} for other responses too, such as an error "
                    'or one without that member, which is then read as "not found"; write '
                    f"something like {example}"
                )
        if self.complete_when is not None and "==" not in self.complete_when:
            yield (
                f"response.complete_when ({self.complete_when}) compares no total: it may be true "
                "for one page of several; write a condition such as total == length(users)"
            )
        if self.match == "echo" and self.complete_when is None:
            yield (
                "response.match is echo without complete_when: if the upstream sends a list in "
                'pages, a user on a further page is read as "not found"; write a condition such '
                "as total == length(users)"
            )


def _results_for_others(expression: Expression, errors: Sequence[Expression]) -> list[Any]:
    """Return the results for responses of another kind, such as an error.

    In those each member that is read is missing, an unknown text, one that ``errors`` name, an
    object or a list of objects, which have the same members; and none of ``errors`` is true.
    """
    names = sorted(expression.members.union(*(each.members for each in errors)))
    nodes = [node for each in errors for node in nodes_of(each.node)]
    literals = [node["value"] for node in nodes if node["type"] == "literal"]
    results = []
    for chosen in islice(product(range(4 + len(literals)), repeat=len(names)), _MAX_DOCUMENTS):
        document: dict[str, Any] = {"": _OTHER}
        values = None, _OTHER, document, [document], *literals
        document |= {name: values[i] for name, i in zip(names, chosen, strict=True) if i}
        with suppress(Broken):
            if all(is_falsy(each.evaluate(document)) for each in errors):
                results.append(expression.evaluate(document))
    return results

"""The option ``response``: the mapping from a response to a user."""

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

_OTHER = "text that no configured expression refers to"
_MAX_DOCUMENTS = 5_000
_QUOTED_NAME = re.compile('[!=]=\\s*"')


class Outcome(StrEnum):
    """The handling of a response, by its status code."""

    READ = "read"
    NOT_KNOWN = "not_known"
    UNAVAILABLE = "unavailable"
    BROKEN = "broken"


StatusOptions = dict[Annotated[WholeNumber, Field(ge=200, le=599)], Outcome]
"""Outcomes by status code. They override the defaults (`outcome`)."""

_LIKE_404 = (204, 410)
_DEFAULTS: Mapping[int, Outcome] = {
    200: Outcome.READ,
    **dict.fromkeys((404, *_LIKE_404), Outcome.NOT_KNOWN),
    **dict.fromkeys((408, 429, *range(500, 1000)), Outcome.UNAVAILABLE),
}


def outcome(status: int, overrides: Mapping[int, Outcome]) -> Outcome:
    """Return the outcome for a status code.

    An override of 404 also applies to 204 and 410, because a wrong path may cause each of them. All
    codes without an override or a default are `BROKEN`. For example, redirects are not followed,
    and 401, 403 and 407 refuse the credentials of this service.
    """
    configured = overrides.get(status) or (overrides.get(404) if status in _LIKE_404 else None)
    return configured or _DEFAULTS.get(status, Outcome.BROKEN)


class ResponseOptions(Options):
    """The meaning of a response, and its mapping to a user."""

    found_when: ExpressionText | None = None
    """An expression on the whole response. A false, empty or null result means "not found"."""
    unavailable_when: ExpressionText | None = None
    """If this condition on the whole response is true, the upstream is unavailable."""
    broken_when: ExpressionText | None = None
    """If this condition on the whole response is true, the upstream has rejected the request, for
    example because of wrong credentials."""
    error: ExpressionText | None = None
    """An expression for the error message in a response without a user. Before the message is
    logged, the requested value, long numbers, mail addresses and secrets are masked."""
    complete_when: ExpressionText | None = None
    """A condition on the whole response that is true if the list of users is complete. If it is
    false, the response is one page of several, or an error, and the lookup fails."""
    select: ListText | None = None
    """An expression for the user's record, or for a list of records. The default is the whole
    response. An empty list means "not found"."""
    pick: Literal["one", "first"] = "one"
    """If a list has several users, fail (one) or use the first user (first)."""
    match: Literal["all", "echo"] = "all"
    """Use all records of a list (all), or only records with the requested nickname or card number
    (echo). If the upstream searches by "contains" or "starts with", echo is needed."""
    id: FieldSource | None = None
    """The id of the user, for the second request (``then``)."""
    plan: FieldSource
    """The plan of the user."""
    card_number: FieldSource | None = None
    """The card number, as a string of digits."""
    nickname: FieldSource | None = None
    """The nickname, with or without ``@``."""
    profile_url: FieldSource | None = None
    """The profile URL. By default, it is derived from the nickname."""
    check_echo: bool = True
    """Require the requested nickname or card number in the response. With false, any user is
    accepted as the requested user."""
    not_known_when: ExpressionText | None = None
    """A condition for "not found". If the status means "not found", but the condition is false for
    the body, the lookup fails, because ``base_url`` may be wrong. If the condition is true for the
    record of a user, for example of a disabled user, the user is "not found"."""
    media_type: Literal["json", "any"] = "json"
    """The required media type of a response: JSON, or any."""

    @model_validator(mode="after")
    def _check_required(self) -> Self:
        missing = [name for name in ("card_number", "nickname") if getattr(self, name) is None]
        if self.check_echo and missing:
            raise ValidationError.from_exception_data(
                "response",
                [InitErrorDetails(type="missing", loc=(name,), input=None) for name in missing],
            )
        if self.match == "echo" and not (self.check_echo and self.select is not None):
            raise ValueError(
                "match: echo needs select, an expression for the list, and check_echo: true"
            )
        return self

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each expression that may hide an error or a user on a later page."""
        texts = (self.unavailable_when, self.broken_when)
        errors = [Expression(text) for text in texts if text is not None]
        for each in errors:
            if _QUOTED_NAME.search(each.text):
                yield (
                    f"{each.text} compares with a member of the response, so it may never be true: "
                    "write text in single quotes; double quotes are for names"
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
                    f"response.{name} ({text}) has a filter: users that it excludes are "
                    '"not found", and a wrong name in the filter excludes all users. Select the '
                    "whole list. To exclude users, such as disabled users, write not_known_when"
                )
            elif any(map(hides, _results_for_others(expression, [] if is_on_record else errors))):
                yield (
                    f"response.{name} ({text}) {result} not only for missing users: a response "
                    "with an error, or without the members of the expression, is also read as "
                    f'"not found"; write an expression such as {example}'
                )
        if self.complete_when is not None and "==" not in self.complete_when:
            yield (
                f"response.complete_when ({self.complete_when}) has no ==, so it may also be true "
                "for a single page of several; write a condition such as total == length(users)"
            )
        if self.match == "echo" and self.complete_when is None:
            yield (
                "response.match is echo without complete_when: if the upstream sends a list in "
                'pages, a user on a further page is read as "not found"; write a condition such '
                "as total == length(users)"
            )


def _results_for_others(expression: Expression, errors: Sequence[Expression]) -> list[Any]:
    """Return the results of an expression for unexpected responses, such as error responses.

    The responses are generated: they have the members to which the expression or ``errors`` refer,
    in all combinations of values. A member is missing, or its value is `_OTHER`, a literal of
    ``errors``, the response itself, or a list of the response. If a condition in ``errors`` is true
    for a response, the response is skipped, because it is not read as "not found".
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

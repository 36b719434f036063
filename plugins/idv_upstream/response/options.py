"""The option ``response``: the mapping from a response to a user."""

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
"""Meanings of statuses that differ from the default."""

_LIKE_404 = (204, 410)
_DEFAULTS: Mapping[int, Outcome] = {
    200: Outcome.READ,
    **dict.fromkeys((404, *_LIKE_404), Outcome.NOT_KNOWN),
    **dict.fromkeys((408, 429, *range(500, 1000)), Outcome.UNAVAILABLE),
}


def outcome(status: int, overrides: Mapping[int, Outcome]) -> Outcome:
    """Return the outcome of a status.

    204 and 410 follow an override of 404: a wrong path may cause all three. Any other status is
    broken: refused credentials (401, 403, 407) are ours, never the client's, and redirects are not
    followed.
    """
    configured = overrides.get(status) or (overrides.get(404) if status in _LIKE_404 else None)
    return configured or _DEFAULTS.get(status, Outcome.BROKEN)


class ResponseOptions(Options):
    """Position of the user in a response."""

    found_when: ExpressionText | None = None
    """An expression on the whole response. A false, empty or null result means "not found"."""
    unavailable_when: ExpressionText | None = None
    """A condition on the whole response. If true, the upstream is unavailable, with any status."""
    broken_when: ExpressionText | None = None
    """A condition on the whole response. If true, the upstream rejects the request, for example our
    credentials."""
    error: ExpressionText | None = None
    """An expression for an error message in the log, on a response without a user. The requested
    value, long numbers, mail addresses and secrets are masked."""
    complete_when: ExpressionText | None = None
    """A condition for a complete response. "Not found" and a single user need it to be true: no
    further page exists."""
    select: ListText | None = None
    """An expression for the user's record, or a list of records; by default the whole response. An
    empty list means "not found"."""
    pick: Literal["one", "first"] = "one"
    """Treatment of a list of several users: an error (one), or its first user counts (first)."""
    match: Literal["all", "echo"] = "all"
    """Records of a list that count: all of them, or those with the requested nickname or card
    number (echo). Needed for a search for "contains" or "starts with"."""
    id: FieldSource | None = None
    """The id of the user in the response to a request with ``then``."""
    plan: FieldSource
    """The plan."""
    card_number: FieldSource | None = None
    """The card number, as a string of digits."""
    nickname: FieldSource | None = None
    """The nickname, with or without ``@``."""
    profile_url: FieldSource | None = None
    """The profile URL; by default derived from the nickname."""
    check_echo: bool = True
    """Require the requested nickname or card number in the response. With false, any user is
    accepted as the requested one."""
    not_known_when: ExpressionText | None = None
    """Expected content of a "not found" response. Guards against a wrong ``base_url``: its 404
    pages do not match. A user with a matching record, such as a disabled one, is "not found",
    too."""
    media_type: Literal["json", "any"] = "json"
    """Required media type of a response: JSON, or any."""

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
            raise ValueError("match: echo needs select for the list, and check_echo")
        return self

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each expression that may hide an error, or a user on a later page."""
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
                    f"response.{name} ({text}) has a filter: excluded records are read as "
                    '"not found", and with a wrong name of a member these are all records; select '
                    "the whole list, and write not_known_when for users such as disabled ones"
                )
            elif any(map(hides, _results_for_others(expression, [] if is_on_record else errors))):
                yield (
                    f"response.{name} ({text}) {result} for other responses too, such as an error "
                    'or one without that member; they are read as "not found"; write something '
                    f"like {example}"
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
    """Return the results of the expression for other responses, such as an error.

    The test documents contain the members of the expression. Each member is missing, an unknown
    text, a literal of ``errors``, an object, or a list of objects. These objects have the same
    members. Documents with a true condition of ``errors`` are left out.
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

"""What the status of an answer means; it knows nothing of bodies."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated

from pydantic import Field

from tornado_idv import WholeNumber


class Outcome(StrEnum):
    """What is made of an answer."""

    READ = "read"
    NOT_KNOWN = "not_known"
    UNAVAILABLE = "unavailable"
    BROKEN = "broken"


StatusOptions = dict[Annotated[WholeNumber, Field(ge=200, le=599)], Outcome]
"""What single statuses mean, where that differs from what they mean by default."""

_OUTCOMES: Mapping[int, Outcome] = {
    HTTPStatus.OK: Outcome.READ,
    HTTPStatus.NO_CONTENT: Outcome.NOT_KNOWN,
    HTTPStatus.NOT_FOUND: Outcome.NOT_KNOWN,
    HTTPStatus.GONE: Outcome.NOT_KNOWN,
    HTTPStatus.REQUEST_TIMEOUT: Outcome.UNAVAILABLE,
    HTTPStatus.TOO_MANY_REQUESTS: Outcome.UNAVAILABLE,
}


def outcome(status: int, overrides: Mapping[int, Outcome]) -> Outcome:
    """What an answer of ``status`` comes to.

    Whatever is not foreseen is broken: refused credentials (401, 403, 407) are ours, never
    the caller's, and a redirect is not followed.
    """
    found = overrides.get(status) or _OUTCOMES.get(status)
    if found is not None:
        return found
    is_error_of_theirs = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return Outcome.UNAVAILABLE if is_error_of_theirs else Outcome.BROKEN

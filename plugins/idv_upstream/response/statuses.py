"""Meaning of the status of a response, without its body."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated

from pydantic import Field

from tornado_idv import WholeNumber


class Outcome(StrEnum):
    """Handling of a response."""

    READ = "read"
    NOT_KNOWN = "not_known"
    UNAVAILABLE = "unavailable"
    BROKEN = "broken"


StatusOptions = dict[Annotated[WholeNumber, Field(ge=200, le=599)], Outcome]
"""What single statuses mean, where that differs from the default."""

_DEFAULTS: Mapping[int, Outcome] = {
    HTTPStatus.OK: Outcome.READ,
    HTTPStatus.NO_CONTENT: Outcome.NOT_KNOWN,
    HTTPStatus.NOT_FOUND: Outcome.NOT_KNOWN,
    HTTPStatus.GONE: Outcome.NOT_KNOWN,
    HTTPStatus.REQUEST_TIMEOUT: Outcome.UNAVAILABLE,
    HTTPStatus.TOO_MANY_REQUESTS: Outcome.UNAVAILABLE,
}


def outcome(status: int, overrides: Mapping[int, Outcome]) -> Outcome:
    """Return the outcome of a status.

    Any other status is broken: refused credentials (401, 403, 407) are ours, never the
    client's, and redirects are not followed.
    """
    known = overrides.get(status) or _DEFAULTS.get(status)
    if known is not None:
        return known
    is_server_error = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return Outcome.UNAVAILABLE if is_server_error else Outcome.BROKEN

"""Steps of a lookup that the handlers and the packet cache share."""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct
from tornado.web import HTTPError

from tornado_idv.errors import IdvError, InvalidFormat, InvalidKey, LookupFailed, format_traceback
from tornado_idv.identifiers import Identifiers
from tornado_idv.keys.api_key import Scope
from tornado_idv.keys.ring import KeyRing
from tornado_idv.limits.failed_auth import FailedAuthLimiter
from tornado_idv.limits.key_limits import KeyLimiter, KeyLimits
from tornado_idv.lookup.directory import Directory
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Answer, Query
from tornado_idv.trace_context import RequestContext, current_request
from tornado_idv.web.access_log import CacheResult, Failure, RequestLog
from tornado_idv.web.errors import ApiError, ApiException, error_for, rate_limited
from tornado_idv.web.json_body import parse_field

_log = logging.getLogger(__name__)


class Operation(Struct, frozen=True):
    """An operation of the API: ``route`` is its name in logs, ``field`` the member of its body."""

    route: str
    scope: Scope
    field: str
    parse: Callable[[Identifiers, str], Query]

    def query(self, body: bytes, identifiers: Identifiers) -> Query:
        """Return the query in the body of a request; raises `InvalidFormat`."""
        return self.parse(identifiers, parse_field(body, self.field))


IDENTIFY_URL = Operation("identify/url", "identify:url", "input", Identifiers.parse_input)
IDENTIFY_CARD = Operation("identify/card", "identify:card", "card_number", Identifiers.parse_card)


@dataclass(frozen=True, slots=True)
class Services:
    """Services that lookups use."""

    directory: Directory
    identifiers: Identifiers
    keys: KeyRing
    access_log: RequestLog | None = None
    key_limiter: KeyLimiter = field(default_factory=KeyLimiter)
    failed_auth: FailedAuthLimiter | None = None
    counters: Counters = field(default_factory=Counters)
    logs_health_checks: bool = True
    stopping: bool = False

    def subject_of(self, query: Query | None) -> str | None:
        """Return how the log names the user that was asked for, if it does."""
        return self.access_log.subject_of(query) if self.access_log is not None else None


class Result(Struct, frozen=True, gc=False):
    """The response to a request; ``fields`` are header lines, each with its line break.

    ``failure``, ``cache`` and ``backend`` are for the log.
    """

    status: int
    body: bytes
    fields: str = ""
    failure: Failure | None = None
    cache: CacheResult | None = None
    backend: str | None = None


_NOT_FOUND = Failure(ApiError.NOT_FOUND.code)


def result_of(answer: Answer, limits: KeyLimits | None, cache: CacheResult) -> Result:
    """Return the result of a lookup, and charge one without a user to the key's limit."""
    if answer.user is not None:
        return Result(200, answer.body, "", None, cache, answer.backend)
    if limits is not None:
        limits.charge_miss()
    return Result(404, answer.body, "", _NOT_FOUND, cache, answer.backend)


def start_lookup(directory: Directory, query: Query, context: RequestContext) -> Future[Answer]:
    """Start a lookup past the cache, for this request."""
    token = current_request.set(context)
    try:
        return directory.start(query)
    finally:
        current_request.reset(token)


def result_of_miss(answer: Answer, limits: KeyLimits | None) -> Result:
    """Return the result of a lookup past the cache; raises `ApiException` over a limit."""
    exceeded = limits.spent_misses() if limits is not None else None
    if exceeded is not None:
        # Lookups that run at the same time would be as many guesses beyond the limit.
        raise rate_limited(exceeded)
    cache: CacheResult = "miss"
    if answer.stale:
        cache = "stale"
    elif answer.coalesced:
        cache = "coalesced"
    elif answer.shared:
        cache = "shared"
    return result_of(answer, limits, cache)


def failure_of(error: BaseException) -> Failure:
    """Return what is logged for an exception that ended a request."""
    backend = error.backend if isinstance(error, LookupFailed) else None
    reason = None
    if isinstance(error, LookupFailed | InvalidKey | InvalidFormat):
        reason = error.reason
    elif isinstance(error, ApiException):
        reason = error.log_message
    return Failure(error_for(error).code, backend, reason)


def log_unexpected(error: BaseException, request_id: str) -> None:
    """Log an exception that is a defect; its response is `ApiError.INTERNAL`."""
    if not isinstance(error, IdvError | HTTPError):
        # Not in the message, which is the key by which repeated errors are folded.
        extra = {"request_id": request_id}
        _log.error("unhandled exception:\n%s", format_traceback(error), extra=extra)

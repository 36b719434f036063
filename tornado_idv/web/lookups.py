"""Lookups of users and their results, shared by the handlers and the fast path."""

import logging
import math
from asyncio import CancelledError, Future
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct
from tornado.web import HTTPError

from tornado_idv.errors import IdvError, InvalidFormat, InvalidKey, LookupFailed, format_traceback
from tornado_idv.identifiers import Identifiers
from tornado_idv.keys.api_key import Scope
from tornado_idv.keys.ring import KeyRing
from tornado_idv.limits import FailedAuthLimiter, KeyLimiter, KeyLimits
from tornado_idv.lookup.directory import Directory
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Answer, Query
from tornado_idv.trace_context import RequestContext, current_request
from tornado_idv.web.access_log import RequestLog
from tornado_idv.web.errors import REASONS, ApiError, ApiException, error_for, rate_limited
from tornado_idv.web.json_body import parse_object, text_member
from tornado_idv.web.response import CacheResult, Result

_log = logging.getLogger(__name__)


class Operation(Struct, frozen=True):
    """An operation of the API.

    ``route`` is its name in logs, and ``field`` the required member of the request body.
    """

    route: str
    scope: Scope
    field: str
    parse: Callable[[Identifiers, str], Query]

    def query(self, body: bytes, identifiers: Identifiers) -> Query:
        """Parse the query from the body of a request. Raises `InvalidFormat`."""
        return self.parse(identifiers, text_member(parse_object(body), self.field))


IDENTIFY_URL = Operation("identify/url", "identify:url", "input", Identifiers.parse_input)
IDENTIFY_CARD = Operation("identify/card", "identify:card", "card_number", Identifiers.parse_card)


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The objects shared by all handlers and the fast path."""

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
        """Return the name of the requested user for the log, or ``None`` to omit it."""
        return self.access_log.subject_of(query) if self.access_log is not None else None


_MAX_RETRY_AFTER = 3600.0
"""Maximum ``Retry-After`` in seconds. The backend of a plugin may set more, or even infinity."""


class PendingLookup(Struct, frozen=True, eq=False):
    """A running lookup in the backends, for one request."""

    future: Future[Answer]
    limits: KeyLimits | None
    request_id: str

    def result(self) -> Result:
        """Return the result. The future must be done."""
        try:
            return _result_of_miss(self.future.result(), self.limits)
        except (Exception, CancelledError) as error:  # noqa: BLE001 - becomes a response
            log_unexpected(error, self.request_id)
            return result_of_error(error, "miss")


def answer(
    api: ApiContext, query: Query, limits: KeyLimits | None, context: RequestContext
) -> Result | PendingLookup:
    """Return the cached result of a lookup, or start the lookup for the request of ``context``.

    If no user is found, a miss is charged to ``limits``.
    """
    return find_cached(api, query, limits) or start_lookup(api, query, limits, context)


def find_cached(api: ApiContext, query: Query, limits: KeyLimits | None) -> Result | None:
    """Return the result of a lookup from the cache, or ``None`` if it is not cached."""
    cached = api.directory.get_cached(query)
    return None if cached is None else result_of(cached, limits, "hit")


def start_lookup(
    api: ApiContext, query: Query, limits: KeyLimits | None, context: RequestContext
) -> PendingLookup:
    """Start a lookup in the backends for the request of ``context``."""
    token = current_request.set(context)  # the task of the lookup copies the context variables
    try:
        future = api.directory.start(query)
    finally:
        current_request.reset(token)
    return PendingLookup(future, limits, context.request_id)


async def find_past_cache(api: ApiContext, query: Query, limits: KeyLimits | None) -> Result:
    """Return the result of a lookup that bypasses the cache. Raises `LookupFailed`.

    The lookup is charged as a miss even if it finds the user, because it costs as much as a miss.
    Above the limit of misses, raises `ApiException`.
    """
    end = await api.directory.find_past_cache(query)
    result = _result_of_miss(end, limits)  # if no user was found, this charges the miss
    if end.found and limits is not None:
        limits.charge_miss()
    return result


def result_of(answer: Answer, limits: KeyLimits | None, cache: CacheResult) -> Result:
    """Return the result of a lookup. If no user is found, a miss is charged to ``limits``."""
    if answer.user is not None:
        return Result(200, answer.body, "", None, None, cache, answer.backend)
    if limits is not None:
        limits.charge_miss()
    return Result(404, answer.body, "", ApiError.NOT_FOUND.code, None, cache, answer.backend)


def _result_of_miss(answer: Answer, limits: KeyLimits | None) -> Result:
    """Return the result of an uncached lookup. Raises `ApiException` above the limit of misses."""
    exceeded = limits.spent_misses() if limits is not None else None
    if exceeded is not None:
        # Without this check, concurrent lookups could guess users beyond the limit.
        raise rate_limited(exceeded)
    cache: CacheResult = "coalesced" if answer.coalesced else "shared" if answer.shared else "miss"
    return result_of(answer, limits, "stale" if answer.stale else cache)


def result_of_error(error: BaseException, cache: CacheResult | None = None) -> Result:
    """Return the error response for an exception."""
    api_error, backend, reason = error_for(error), None, None
    fields = api_error.fields
    if isinstance(error, ApiException):
        fields += error.fields
        reason = error.log_message
    elif isinstance(error, LookupFailed):
        backend, reason = error.backend, error.reason
        # `max` also turns NaN into 1.
        fields = f"Retry-After: {math.ceil(min(max(1.0, error.retry_after), _MAX_RETRY_AFTER))}\r\n"
    elif isinstance(error, InvalidKey | InvalidFormat):
        reason = error.reason
    if api_error in REASONS:
        fields += f"X-Error-Reason: {reason}\r\n"
    return Result(api_error.status, api_error.body, fields, api_error.code, reason, cache, backend)


def log_unexpected(error: BaseException, request_id: str) -> None:
    """Log an unexpected exception, whose response is `ApiError.INTERNAL`."""
    if not isinstance(error, IdvError | HTTPError):
        # The id is not in the message: repeated errors with one message are logged once.
        extra = {"request_id": request_id}
        _log.error("unhandled exception:\n%s", format_traceback(error), extra=extra)

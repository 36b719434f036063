"""The access log, with one line for each response.

Most log lines are access lines. For speed, they do not pass through `logging`: their records are
collected, and then rendered and written in batches.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Literal, Protocol

from msgspec import Struct

from tornado_idv.log_format import FormatLines, format_time
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Query
from tornado_idv.trace_context import RequestContext
from tornado_idv.web.errors import ApiError
from tornado_idv.web.response import CacheResult, Result

Ids = Literal["none", "hash", "full"]

_FLUSH_INTERVAL = 0.1
"""Seconds to collect lines before a write, because a write costs as much as several responses."""
_MAX_LINES = 500
"""Maximum number of lines to collect. To render them takes 0.3 ms (CPython 3.11)."""
_SECRET = secrets.token_bytes(32)
"""Key of the hash of users. It is created before any fork, so a user has the same hash in the lines
of all workers."""


class LoggedRequest(RequestContext, frozen=True, gc=False):
    """A request as the counters and the access log record it.

    ``client`` is the address of the client, and ``key`` the id of its key. ``subject`` is the name
    of the requested user from `RequestLog.subject_of`.
    """

    method: str
    route: str
    client: str
    key: str | None = None
    subject: str | None = None


class AccessRecord(Struct, gc=False, omit_defaults=True):
    """The fields of an access line, in order. The fields after ``request_id`` are optional."""

    timestamp: str
    level: str
    logger: str
    event: str
    method: str
    route: str
    status: int
    ms: float
    client: str
    key: str | None
    request_id: str
    cache: CacheResult | None = None
    backend: str | None = None
    code: str | None = None
    reason: str | None = None
    subject: str | None = None
    trace_id: str | None = None


class RequestLog(Protocol):
    """The interface of an access log. `AccessLog` implements it."""

    def subject_of(self, query: Query | None) -> str | None:
        """Return the name of the requested user for a line, or ``None`` to omit the user."""

    def add(self, record: AccessRecord) -> None:
        """Log a response."""


class AccessLog(RequestLog):
    """Writes a line for each response. ``write`` takes the text of several lines.

    ``ids`` selects the names of requested users. With ``none``, a line contains no part of the
    input. With ``full``, the name is the text of the query. With ``hash``, it is a keyed hash of
    the text. The key is random for each start of the service. Without a secret key, a reader of the
    log could compute the hashes of guessed nicknames and card numbers, and find them in the log.
    """

    def __init__(
        self, write: Callable[[str], object], format_lines: FormatLines, ids: Ids = "none"
    ) -> None:
        self._write = write
        self._format_lines = format_lines
        self._ids = ids
        self._since = self._until = 0.0  # the millisecond for which `_timestamp` is valid
        self._timestamp = ""
        self._records: list[AccessRecord] = []
        self._timer: asyncio.TimerHandle | None = None

    def subject_of(self, query: Query | None) -> str | None:
        if query is None or self._ids == "none":
            return None
        if self._ids == "full":
            return query.text
        # As a prefix, the secret is a safe key: BLAKE2 has no length extension.
        return blake2b(_SECRET + query.text.encode(), digest_size=8).hexdigest()

    def add(self, record: AccessRecord) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_INTERVAL, self._on_timer)
        now = time.time()
        if not self._since <= now < self._until:
            milliseconds = int(now * 1000)
            self._since, self._until = milliseconds / 1000, (milliseconds + 1) / 1000
            self._timestamp = format_time(now)
        record.timestamp = self._timestamp
        records = self._records
        records.append(record)
        if len(records) >= _MAX_LINES:
            self.flush()

    def _on_timer(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Write the collected lines."""
        if self._records:
            records, self._records = self._records, []
            self._write(self._format_lines(records))


def record_response(
    counters: Counters,
    log: RequestLog | None,
    request: LoggedRequest,
    result: Result,
    seconds: float,
) -> None:
    """Count a response. With ``log``, also log the response."""
    code, reason, cache = result.code, result.reason, result.cache
    counters.responses[request.route, code or "ok"].add(seconds)
    if cache is not None:
        counters.cache_lookups[cache] += 1
    if reason is not None:
        if code == ApiError.TOKEN.code:
            counters.auth_failures[reason] += 1
        elif code == ApiError.RATE_LIMITED.code:
            counters.rate_limited[reason] += 1
    if log is not None:
        trace = request.trace
        record = AccessRecord(
            "",
            "info",
            "tornado_idv.access",
            "request",
            request.method,
            request.route,
            result.status,
            int(seconds * 100_000 + 0.5) / 100,  # milliseconds, rounded to two decimals
            request.client,
            request.key,
            request.request_id,
            cache,
            result.backend,
            code,
            reason,
            request.subject,
            None if trace is None else trace.id,
        )
        log.add(record)

"""One log line for each response.

These lines are by far the most, so they do not pass through `logging`: their records are
collected, and rendered and written in batches.
"""

from __future__ import annotations

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
SubjectOf = Callable[[str], str]
"""Return the name of the requested user in the log, for the text of a query."""

_FLUSH_INTERVAL = 0.1
"""Seconds until collected lines are written: each time takes as long as several responses."""
_MAX_LINES = 500
"""The maximum number of collected lines. Rendering them blocks the event loop for 0.3 ms
(CPython 3.11)."""
_SECRET = secrets.token_bytes(32)
"""Made before any fork, so that a user has the same hash in the lines of all workers."""


class LoggedRequest(RequestContext, frozen=True, gc=False):
    """A request, for the counters and the log.

    ``client`` is its address, ``key`` the id of the key, and ``subject`` the name of the requested
    user by `RequestLog.subject_of`.
    """

    method: str
    route: str
    client: str
    key: str | None = None
    subject: str | None = None


class AccessRecord(Struct, gc=False, omit_defaults=True):
    """The fields of a line, in order. Those after ``request_id`` are optional."""

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
    """Record of requests; `AccessLog` is one."""

    def subject_of(self, query: Query | None) -> str | None:
        """Return the name of the requested user in a line; ``None`` omits it."""

    def add(self, record: AccessRecord) -> None:
        """Log a response."""


class AccessLog(RequestLog):
    """Writes a line for each response; ``write`` takes text, some lines at a time.

    ``subject_of`` returns the name of the requested user. Without it, a line contains nothing of
    the input.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        format_lines: FormatLines,
        subject_of: SubjectOf | None = None,
    ) -> None:
        self._write = write
        self._format_lines = format_lines
        self._subject_of = subject_of
        self._since = self._until = 0.0  # the millisecond of the cached formatted time
        self._timestamp = ""
        self._records: list[AccessRecord] = []
        self._timer: asyncio.TimerHandle | None = None

    def subject_of(self, query: Query | None) -> str | None:
        return self._subject_of(query.text) if self._subject_of and query else None

    def add(self, record: AccessRecord) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_FLUSH_INTERVAL, self._on_timer)
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
    """Count a response, and log it if there is a ``log``."""
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


def make_subject_of(ids: Ids) -> SubjectOf | None:
    """Return a function that names a user in the log: by a hash of the query, or by its text.

    ``None`` names no user. The key of the hash is random for each start of the service: nicknames
    and card numbers can be guessed, but must not be found by hashing guesses.
    """
    if ids == "none":
        return None
    if ids == "full":
        return str
    # A secret prefix is a key, since BLAKE2 has no length extension. It shares its block with the
    # text. The argument `key` would be a separate block and take 0.3 µs more (CPython 3.11).
    keyed = blake2b(_SECRET, digest_size=8)

    def hashed(text: str) -> str:
        digest = keyed.copy()
        digest.update(text.encode())
        return digest.hexdigest()

    return hashed

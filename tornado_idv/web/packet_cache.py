"""The packet cache: requests whose bytes were parsed before skip parser and handlers.

It maps bytes to what they mean, a key and a query, and never to an answer: that comes from the
`AnswerCache`, as long as it is fresh there and the key is valid and within its limits. Otherwise
the request takes the normal path. Whatever the normal path does beside responding happens here as
well: observers are called, the limits are charged, the response is counted and gets a request id,
the access log gets its line.

Heads are kept as digests, because they contain keys. A body is kept when it is sent for the
second time at the earliest: most clients that guess never repeat a request, and so evict nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from msgspec import Struct

from tornado_idv.http.exchange import Exchange, Peer
from tornado_idv.http.head import RequestHead
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing
from tornado_idv.limits.key_limits import KeyLimiter, KeyLimits
from tornado_idv.lookup.directory import Directory
from tornado_idv.metrics.counters import FIRST_BOUND, Counters, Durations
from tornado_idv.model import Query
from tornado_idv.web.access_log import AccessLog, Failure
from tornado_idv.web.errors import ApiError
from tornado_idv.web.response import build_response, new_request_id

_HEAD_END = b"\r\n\r\n"
_MAX_HEAD = 1024
_MAX_BODY = 1024
_MAX_HEADS = 1_000
_MAX_QUERY_BYTES = 16 * 1024 * 1024
"""Memory of the bodies of one route and their queries: about 50,000 of usual length."""
_ENTRY_BYTES = 288
"""What an entry takes beside its characters (CPython 3.11)."""
_SUBJECT_BYTES = 49
"""What the name of a user in the access log takes beside its characters."""
_CHANGES_RESPONSE = (
    "Connection",
    "Content-Encoding",
    "Expect",
    "Transfer-Encoding",
    "X-Request-ID",
)
"""Header fields with which the response may be another one."""


_Outcome = tuple[int, Failure | None, Durations]
"""The status of a response, what is logged if that is not 200, and where it is counted."""


class CacheableRequest(Struct, frozen=True):
    """Meaning of a request as its handler understood it.

    ``repeated`` says that the answer was cached, so that it had been asked for before.
    """

    route: str
    key: ApiKey
    query: Query
    repeated: bool


class _KnownQuery(Struct, frozen=True, gc=False):
    """Meaning of a body, and how the access log names the user."""

    query: Query
    subject: str | None


class _QueryTable:
    """The meaning of bodies; the oldest are dropped when the table is full."""

    __slots__ = ("_bytes", "by_body")

    def __init__(self) -> None:
        self.by_body: OrderedDict[bytes, _KnownQuery] = OrderedDict()
        self._bytes = 0

    def store(self, body: bytes, known: _KnownQuery) -> None:
        if body in self.by_body:
            return
        self.by_body[body] = known
        self._bytes += _size(body, known)
        while self._bytes > _MAX_QUERY_BYTES:
            self._bytes -= _size(*self.by_body.popitem(last=False))


@dataclass(frozen=True, slots=True, repr=False)
class _KnownHead:
    """Meaning of a head, and the bodies that may follow it."""

    route: str
    key: ApiKey
    limits: KeyLimits | None
    content_length: int
    forwarded_for: str
    queries: _QueryTable
    found: _Outcome
    not_found: _Outcome


class PacketCache:
    """Meaning of requests by their bytes; shared by all connections."""

    def __init__(
        self,
        directory: Directory,
        keys: KeyRing,
        access_log: AccessLog | None,
        key_limiter: KeyLimiter,
        counters: Counters | None = None,
    ) -> None:
        self.counters = counters or Counters()
        self.directory = directory
        self.timer = directory.cache.timer
        self.keys = keys
        self.clock = keys.clock
        self.access_log = access_log
        self.log: Callable[..., None] = _discard if access_log is None else access_log.log
        self._key_limiter = key_limiter
        self._heads: OrderedDict[bytes, _KnownHead] = OrderedDict()
        self._queries: dict[str, _QueryTable] = {}

    def connect(self, peer: Peer) -> PacketFastPath:
        """Return the fast path of a new connection."""
        return PacketFastPath(self, peer)

    def find_head(self, head: bytes) -> _KnownHead | None:
        """Return what a head means."""
        return self._heads.get(sha256(head).digest())

    def store_head(self, data: bytes, head: RequestHead, request: CacheableRequest) -> _KnownHead:
        """Store, and return, what a head means."""
        known = _KnownHead(
            request.route,
            request.key,
            self._key_limiter.of(request.key),
            head.content_length or 0,
            head.fields.get("x-forwarded-for", ""),
            self._queries.setdefault(request.route, _QueryTable()),
            (200, None, self.counters.packet_hits_of(request.route, "ok")),
            (*_NOT_FOUND, self.counters.packet_hits_of(request.route, ApiError.NOT_FOUND.code)),
        )
        digest = sha256(data).digest()
        if len(self._heads) >= _MAX_HEADS and digest not in self._heads:
            self._heads.popitem(last=False)
        self._heads[digest] = known
        return known

    def discard_head(self, head: bytes) -> None:
        """Drop what a head means."""
        self._heads.pop(sha256(head).digest(), None)


class PacketFastPath:
    """The fast path of one connection; remembers its last head, which mostly comes again."""

    __slots__ = ("_address", "_cache", "_head", "_known", "_peer", "_size")

    def __init__(self, cache: PacketCache, peer: Peer) -> None:
        self._cache = cache
        self._peer = peer
        self._head = b""
        self._size = 0  # of the whole request
        self._known: _KnownHead | None = None
        self._address = ""

    def respond(self, segment: bytes) -> bytes | None:
        """Return the response, if the request's meaning and its answer are cached."""
        if len(segment) != self._size or not segment.startswith(self._head):
            self._remember(segment)
        known = self._known
        if known is None:
            return None
        cache = self._cache
        now = cache.clock()
        if not cache.keys.holds(known.key, now):
            self._discard_head()
            return None
        known_query = known.queries.by_body.get(segment[len(self._head) :])
        if known_query is None:
            return None
        started_at = cache.timer()
        limits = known.limits
        if limits is not None and limits.acquire(started_at) is not None:
            return None
        answer = cache.directory.get_cached(known_query.query, started_at)
        if answer is None:
            if limits is not None:
                limits.release()
            return None
        status, failure, durations = known.not_found if answer.user is None else known.found
        if limits is not None and failure is not None:
            limits.charge_miss(started_at)
        request_id = new_request_id()
        seconds = cache.timer() - started_at
        # As `Durations.add` does, without a call: 3 % of a hit.
        durations.seconds += seconds
        if seconds <= FIRST_BOUND:
            durations.fast += 1
        else:
            durations.add_slow(seconds)
        cache.log(
            "POST",
            known.route,
            status,
            seconds,
            self._address,
            known.key.id,
            request_id,
            failure,
            known_query.subject,
            "hit",
            answer.backend,
            now,
        )
        return build_response(status, request_id, answer.body, now=now)

    def store(self, exchange: Exchange) -> None:
        """Store what the handler understood of a request that can be recognized by its bytes."""
        request = exchange.cacheable
        if not isinstance(request, CacheableRequest):
            return
        segment = exchange.segment
        if self._known is None or not segment.startswith(self._head):
            head = segment[: _head_size(segment)]
            if not _is_cacheable(exchange.head, len(head), len(segment) - len(head)):
                return
            self._select(head, self._cache.store_head(head, exchange.head, request))
        if request.repeated and self._known is not None:
            log, query = self._cache.access_log, request.query
            subject = log.subject_of(query) if log is not None else None
            self._known.queries.store(segment[len(self._head) :], _KnownQuery(query, subject))

    def _discard_head(self) -> None:
        """Drop the head of a key that was valid: later requests take the time of any other 401."""
        self._cache.discard_head(self._head)
        self._known = None

    def _remember(self, segment: bytes) -> None:
        """Make the head of ``segment`` the last one, whether it is known or not."""
        head = segment[: _head_size(segment)]
        known = self._cache.find_head(head) if 0 < len(head) <= _MAX_HEAD else None
        if known is not None and len(segment) - len(head) == known.content_length:
            self._select(head, known)
        else:
            self._head, self._size, self._known = head[:_MAX_HEAD], len(segment), None

    def _select(self, head: bytes, known: _KnownHead) -> None:
        self._head, self._size, self._known = head, len(head) + known.content_length, known
        self._address = self._peer.client_address(known.forwarded_for)


_NOT_FOUND = ApiError.NOT_FOUND.status, Failure(ApiError.NOT_FOUND.code)


def _discard(*_: object) -> None:
    """Log nothing."""


def _head_size(segment: bytes) -> int:
    """Return where the body begins; 0 if the head is not complete."""
    end = segment.find(_HEAD_END)
    return end + len(_HEAD_END) if end >= 0 else 0


def _is_cacheable(head: RequestHead, head_size: int, body_size: int) -> bool:
    """Return whether the bytes are one request whose head has nothing that changes the response."""
    start_line, headers = head.start_line, head.headers
    return (
        0 < head_size <= _MAX_HEAD
        and 0 < body_size <= _MAX_BODY
        and headers.get("Content-Length") == str(body_size)
        and start_line.method == "POST"
        and start_line.version == "HTTP/1.1"
        and not any(name in headers for name in _CHANGES_RESPONSE)
        and len(list(headers.get_all())) == len(headers)
    )


def _size(body: bytes, known: _KnownQuery) -> int:
    """Return the memory of an entry in bytes; a query may hold its text twice."""
    subject = _SUBJECT_BYTES + len(known.subject) if known.subject else 0
    return _ENTRY_BYTES + len(body) + 2 * len(known.query.text) + subject

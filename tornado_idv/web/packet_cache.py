"""The packet cache: requests of clients seen before skip parser and handlers.

It recognizes a request head by a template, a key by its token's digest and a query by the bytes of
its body, and never keeps an answer: that comes from the directory. Whatever the handlers do beside
responding happens here as well: the limits are charged, observers are called, the response is
counted and gets a request id, the access log gets its line. A request whose key is not valid, that
exceeds a limit or whose body is not valid is left to the handlers.

A body is kept when it is sent for the second time at the earliest: most clients that guess never
repeat a request, and so evict nothing.
"""

from __future__ import annotations

import re
from asyncio import CancelledError, Future
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from hashlib import sha256

from msgspec import Struct

from tornado_idv.errors import InvalidFormat
from tornado_idv.http.exchange import Exchange, Peer, ResponseSink
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.token import MAX_LENGTH
from tornado_idv.limits.key_limits import KeyLimits
from tornado_idv.model import Answer, Query
from tornado_idv.trace_context import RequestContext, Trace, valid_state
from tornado_idv.web.access_log import record_response
from tornado_idv.web.errors import error_for, fields_for
from tornado_idv.web.head_template import HeadTemplate, HeadTemplates
from tornado_idv.web.lookups import (
    Operation,
    Result,
    Services,
    failure_of,
    log_unexpected,
    result_of,
    result_of_miss,
    start_lookup,
)
from tornado_idv.web.response import ECHOED, build_response, new_request_id

_MAX_BODY = 1024
_MAX_BODIES = 20_000
"""Bodies of one operation that are kept; each takes at most 1.6 KiB, and usually 0.4 KiB."""


class Accepted(Struct, frozen=True):
    """A request that the handlers accepted, as they understood it."""

    operation: Operation
    key: ApiKey


class _KnownQuery(Struct, frozen=True, gc=False):
    """Meaning of a body, and how the access log names the user."""

    query: Query
    subject: str | None


class _Meaning(Struct, frozen=True, eq=False):
    """Meaning of a template, and the bodies that may follow its heads, the oldest first."""

    operation: Operation
    queries: OrderedDict[bytes, _KnownQuery]


class PacketCache:
    """Meaning of requests by their bytes; shared by all connections.

    ``excludes`` returns whether a query is always left to the handlers.
    """

    def __init__(
        self,
        services: Services,
        max_body: int = _MAX_BODY,
        excludes: Callable[[Query], bool] | None = None,
    ) -> None:
        self.services = services
        self.excludes = excludes
        self.templates = HeadTemplates[_Meaning]()
        self.max_body = min(max_body, _MAX_BODY)
        self._queries: defaultdict[str, OrderedDict[bytes, _KnownQuery]] = defaultdict(OrderedDict)

    def connect(self, peer: Peer) -> PacketFastPath:
        """Return the fast path of a new connection."""
        return PacketFastPath(self, peer)

    def learn(self, exchange: Exchange) -> None:
        """Learn the head of a request that the handlers accepted."""
        accepted = exchange.cacheable
        if isinstance(accepted, Accepted):
            operation = accepted.operation
            meaning = _Meaning(operation, self._queries[operation.route])
            self.templates.learn(exchange.head, accepted.key.id, meaning)


class PacketFastPath:
    """The fast path of one connection; remembers its last template, which mostly fits again."""

    __slots__ = ("_cache", "_peer", "_services", "_template", "keep_alive")

    keep_alive: bool

    def __init__(self, cache: PacketCache, peer: Peer) -> None:
        self._cache = cache
        self._services = cache.services
        self._peer = peer
        self._template: HeadTemplate[_Meaning] | None = None

    def match(self, data: bytes | bytearray) -> tuple[int, re.Match[bytes]] | None:
        """Return the size of the request that ``data`` begins with, and what is in its head.

        ``None`` if the head is not known. The match holds a token: it is not to be kept.
        """
        template = self._template
        match = template.match(data) if template is not None else None
        if template is None or match is None:
            template = self._cache.templates.find(data)
            match = template.match(data) if template is not None else None
            if template is None or match is None:
                return None
            self._template = template
            self.keep_alive = template.keep_alive
        length = int(match[template.length])
        if not 0 < length <= self._cache.max_body:
            return None
        return match.end() + length, match

    def respond(
        self, match: re.Match[bytes], body: bytes, sink: ResponseSink
    ) -> bytes | PendingResponse | None:
        """Return the response to the request that was matched last, or begin its lookup.

        ``None`` leaves the request to the handlers, as if it had not been seen.
        """
        template, services = self._template, self._services
        if template is None:
            return None
        meaning = template.meaning
        operation = meaning.operation
        now, token = services.keys.clock(), match[template.token]
        key = services.keys.find(sha256(token).digest(), now) if len(token) <= MAX_LENGTH else None
        if key is None or operation.scope not in key.scopes:
            return None
        queries = meaning.queries
        known = queries.get(body) or self._parse(operation, body)
        excludes = self._cache.excludes
        if known is None or (excludes is not None and excludes(known.query)):
            return None
        directory = services.directory
        started_at = directory.cache.timer()
        limits = services.key_limiter.of(key)
        if limits is not None and limits.acquire(started_at) is not None:
            return None
        answer = directory.get_cached(known.query, started_at)
        request_id = template.request_id and match[template.request_id]
        request_id = request_id.decode() if request_id else new_request_id()
        echoed = _echoed(match, template) if template.echoed else ""
        trace = _trace(match, template) if template.traceparent else None
        peer = self._peer
        address = peer.remote_ip
        if peer.proxies is not None:
            group = template.forwarded_for
            address = peer.client_address(_text(match[group]) if group else "")
        if answer is None:
            context = RequestContext(request_id, trace)
            pending = PendingResponse(
                *(services, template, key.id, limits, context, address, known.subject, started_at),
                echoed,
                sink,
                template.keep_alive,
            )
            start_lookup(directory, known.query, context).add_done_callback(pending.respond)
            return pending
        if body not in queries:
            queries[body] = known
            if len(queries) > _MAX_BODIES:
                queries.popitem(last=False)
        result = result_of(answer, limits, "hit")
        seconds = directory.cache.timer() - started_at
        status, fields = result.status, echoed + template.connection_field
        response = build_response(status, request_id, result.body, fields, now=now)
        record_response(
            services.counters,
            services.access_log,
            "POST",
            operation.route,
            status,
            seconds,
            address,
            key.id,
            request_id,
            result.failure,
            known.subject,
            "hit",
            result.backend,
            now,
            trace,
        )
        return response

    def _parse(self, operation: Operation, body: bytes) -> _KnownQuery | None:
        services = self._services
        try:
            query = operation.query(body, services.identifiers)
        except InvalidFormat:
            return None
        return _KnownQuery(query, services.subject_of(query))


class PendingResponse(Struct, eq=False):
    """A request whose lookup runs; in place of the `Exchange` of its connection.

    ``started_at`` is the time of the directory's timer, ``echoed`` the header line with the
    client's own id.
    """

    services: Services
    template: HeadTemplate[_Meaning]
    key_id: str
    limits: KeyLimits | None
    context: RequestContext
    address: str
    subject: str | None
    started_at: float
    echoed: str
    sink: ResponseSink
    keep_alive: bool

    def close_after_response(self) -> None:
        """Close the connection when the response is complete."""
        self.keep_alive = False

    def on_disconnect(self) -> None:
        """Do nothing: the lookup goes on, and its answer is cached."""

    def respond(self, lookup: Future[Answer]) -> None:
        """Send the response, now that its lookup has ended."""
        services, request_id = self.services, self.context.request_id
        try:
            result = result_of_miss(lookup.result(), self.limits)
        except (Exception, CancelledError) as error:  # noqa: BLE001 - becomes a response
            log_unexpected(error, request_id)
            api_error = error_for(error)
            fields, failure = fields_for(error), failure_of(error)
            result = Result(api_error.status, api_error.body, fields, failure, "miss")
        fields = self.echoed + result.fields
        fields += self.template.connection_field if self.keep_alive else _CLOSE
        self.sink.send(build_response(result.status, request_id, result.body, fields))
        self.sink.on_response_complete(keep_alive=self.keep_alive)
        record_response(
            services.counters,
            services.access_log,
            "POST",
            self.template.meaning.operation.route,
            result.status,
            services.directory.cache.timer() - self.started_at,
            self.address,
            self.key_id,
            request_id,
            result.failure,
            self.subject,
            result.cache,
            result.backend,
            trace=self.context.trace,
        )


_CLOSE = "Connection: close\r\n"


def _trace(match: re.Match[bytes], template: HeadTemplate[_Meaning]) -> Trace | None:
    trace_id, parent = match.group(template.traceparent, template.traceparent + 1)
    state = valid_state(_text(match[template.tracestate])) if template.tracestate else ""
    return Trace(trace_id.decode(), parent.decode(), state) if trace_id else None


def _echoed(match: re.Match[bytes], template: HeadTemplate[_Meaning]) -> str:
    """Return the header line with the client's own id, if it is valid."""
    value = match[template.echoed]
    return f"{ECHOED}: {value.decode()}\r\n" if value else ""


def _text(value: bytes) -> str:
    """Return the value of a header field as the parser has it."""
    return value.strip(b" \t").decode("latin-1")

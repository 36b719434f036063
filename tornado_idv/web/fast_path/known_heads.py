"""Known heads: most requests that match a head template are served without the handlers.

A request head is recognized by a template, a key by its token's digest, and a query by the bytes of
its body. Answers are not stored in this module: they come from the `Directory`. In place of the
handlers, this module charges the limits, adds a request id, and counts and logs the response. The
handlers serve requests with an invalid key or body, requests over a limit, and batches with an
uncached item.

A parsed body is stored if the cache contains its answer. A client that guesses rarely repeats a
body, so its bodies are rarely stored, and do not evict the bodies of other clients.
"""

import re
from asyncio import Future
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from hashlib import sha256
from time import monotonic
from typing import Any

from msgspec import Struct

from tornado_idv.errors import InvalidFormat
from tornado_idv.http.exchange import Peer, ResponseSink
from tornado_idv.http.head import RequestHead
from tornado_idv.http.serving import Match
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.token import MAX_LENGTH
from tornado_idv.model import Answer
from tornado_idv.trace_context import Trace, valid_state
from tornado_idv.web.access_log import LoggedRequest, record_response
from tornado_idv.web.fast_path.head_template import HeadTemplate, HeadTemplates
from tornado_idv.web.lookups import ApiContext, Operation, PendingLookup, answer
from tornado_idv.web.response import ECHOED, Result, build_response, new_request_id

_MAX_BODY = 1024
_MAX_BODIES = 20_000
"""Maximum number of stored bodies per operation. A body usually takes 0.4 KiB, at most 1.6 KiB."""


class KnownBody(Struct, frozen=True, gc=False):
    """A parsed body. ``answer`` looks up its ``query``. ``subject`` is the user in logs."""

    query: Any
    subject: str | None = None
    lookups: int = 1
    answer: Callable[..., Result | PendingLookup] = answer


Read = Callable[[ApiContext, Operation, ApiKey, bytes], KnownBody | None]
"""Parses a body. For ``None`` or a raised `InvalidFormat`, the handlers serve the request."""


class _Meaning(Struct, frozen=True, eq=False):
    """The operation of a template, and the known bodies of its requests, the oldest first."""

    operation: Operation
    read: Read
    bodies: OrderedDict[bytes, KnownBody]


class KnownHeads:
    """The known heads and bodies, shared by all connections."""

    def __init__(self, api: ApiContext, max_body: int = _MAX_BODY) -> None:
        self.api = api
        self.templates = HeadTemplates[_Meaning]()
        self.max_body = min(max_body, _MAX_BODY)
        self._bodies: defaultdict[str, OrderedDict[bytes, KnownBody]] = defaultdict(OrderedDict)

    def connect(self, peer: Peer) -> Match:
        """Return the fast path of a new connection: a function that matches its requests."""
        latest: HeadTemplate[_Meaning] | None = None
        expected: HeadTemplate[_Meaning] | None = None  # `latest`, unless the templates alternate

        def match(data: bytes | bytearray) -> MatchedRequest | None:
            nonlocal latest, expected
            template = expected
            found = template.match(data) if template is not None else None
            if template is None or found is None:
                template = self.templates.find(data)
                found = template.match(data) if template is not None else None
                if template is None or found is None:
                    return None
                expected = template if latest in (None, template) else None
                latest = template
            length = int(found[template.length])
            if length > self.max_body:
                return None
            return MatchedRequest(
                found.end() + length, template.keep_alive, self, peer, template, found
            )

        return match

    def learn(self, head: RequestHead, key_id: str, operation: Operation, read: Read) -> None:
        """Learn the head of a request accepted by the handlers."""
        self.templates.learn(head, key_id, _Meaning(operation, read, self._bodies[operation.route]))


def read_query(api: ApiContext, operation: Operation, _: ApiKey, body: bytes) -> KnownBody:
    """Parse the query of a body. Raises `InvalidFormat`."""
    query = operation.query(body, api.identifiers)
    return KnownBody(query, api.subject_of(query))


class MatchedRequest(Struct, frozen=True, eq=False, gc=False):
    """A request whose head matches a template. ``size`` includes the head and the body.

    ``match`` contains a token: do not keep it.
    """

    size: int
    keep_alive: bool
    heads: KnownHeads
    peer: Peer
    template: HeadTemplate[_Meaning]
    match: re.Match[bytes]

    def respond(self, data: bytes, sink: ResponseSink) -> "bytes | PendingResponse | None":
        """Return the response to the request ``data``, or a pending response for a lookup.

        After ``None``, the handlers must serve the request, and also charge and log it.
        """
        started_at = monotonic()
        api, peer, template, match = self.heads.api, self.peer, self.template, self.match
        meaning = template.meaning
        operation, bodies = meaning.operation, meaning.bodies
        token = match[template.token]
        key = api.keys.find(sha256(token).digest()) if len(token) <= MAX_LENGTH else None
        if key is None or operation.scope not in key.scopes:
            return None
        body = data[match.end() :]
        kept = bodies.get(body)
        try:
            known = kept or meaning.read(api, operation, key, body)
        except InvalidFormat:
            return None
        if known is None:
            return None
        limits = api.key_limiter.of(key)
        if limits is not None and limits.acquire(known.lookups) is not None:
            return None
        sent_id = template.request_id and match[template.request_id]
        request = LoggedRequest(
            sent_id.decode() if sent_id else new_request_id(),
            self._trace() if template.traceparent else None,
            "POST",
            operation.route,
            peer.proxies.client_address(peer.remote_ip, self._value(template.forwarded_for))
            if peer.proxies
            else peer.remote_ip,
            key.id,
            known.subject,
        )
        result = known.answer(api, known.query, limits, request)
        echoed = template.echoed and match[template.echoed]
        fields = f"{ECHOED}: {echoed.decode()}\r\n" if echoed else ""
        if isinstance(result, PendingLookup):
            pending = PendingResponse(
                api, template, request, started_at, fields, result, sink, self.keep_alive
            )
            result.future.add_done_callback(pending.send)
            return pending
        if kept is None and known.answer is answer:
            bodies[body] = known
            if len(bodies) > _MAX_BODIES:
                bodies.popitem(last=False)
        fields += template.connection_field
        return _render(api, request, started_at, result, fields)

    def _value(self, group: int) -> str:
        """Decode the value of a header field in the same way as the parser."""
        return self.match[group].strip(b" \t").decode("latin-1") if group else ""

    def _trace(self) -> Trace | None:
        template, match = self.template, self.match
        trace_id, parent = match.group(template.traceparent, template.traceparent + 1)
        state = valid_state(self._value(template.tracestate)) if template.tracestate else ""
        return Trace(trace_id.decode(), parent.decode(), state) if trace_id else None


class PendingResponse(Struct, eq=False):
    """A response that is sent when its lookup ends. Connections use it in place of an `Exchange`.

    ``fields`` are the header lines that do not depend on the result.
    """

    api: ApiContext
    template: HeadTemplate[_Meaning]
    request: LoggedRequest
    started_at: float
    fields: str
    lookup: PendingLookup
    sink: ResponseSink
    keep_alive: bool

    def close_after_response(self) -> None:
        """Close the connection when the response is complete."""
        self.keep_alive = False

    def on_disconnect(self) -> None:
        """Ignore the disconnect: the lookup continues, and its answer is cached."""

    def send(self, _: Future[Answer]) -> None:
        """Send the response after the end of its lookup."""
        result, keep_alive = self.lookup.result(), self.keep_alive
        fields = self.fields + result.fields
        fields += self.template.connection_field if keep_alive else "Connection: close\r\n"
        self.sink.send(_render(self.api, self.request, self.started_at, result, fields))
        self.sink.on_response_complete(keep_alive=keep_alive)


def _render(
    api: ApiContext, request: LoggedRequest, started_at: float, result: Result, fields: str
) -> bytes:
    """Return the response as bytes. Count and log the response."""
    response = build_response(result.status, request.request_id, result.body, fields)
    record_response(api.counters, api.access_log, request, result, monotonic() - started_at)
    return response

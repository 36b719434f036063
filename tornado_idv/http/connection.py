"""One client connection: lifecycle, timeouts, back-pressure. It serves one request at a time."""

import asyncio
import socket
import struct
from asyncio import Future, Transport
from http import HTTPStatus
from math import inf
from typing import cast

from tornado.httputil import HTTPInputError

from tornado_idv.http.connection_table import State
from tornado_idv.http.exchange import Exchange, Peer, ResponseSink
from tornado_idv.http.head import HttpError, RequestHead
from tornado_idv.http.parser import MAX_HEAD, RequestParser
from tornado_idv.http.serving import KnownRequest, Match, Pending, ServerContext

# An access to `State.IDLE` takes 0.1 µs longer, ten times per request (CPython 3.11).
IDLE, READING, QUEUED, RESPONDING, CLOSING, CLOSED = State
_NOT_RECEIVING = (CLOSING, CLOSED)
"""The states in which input is discarded."""
_NOT_READING = (RESPONDING, CLOSING, CLOSED)
"""The states in which no request is started."""
_MAX_UNSENT = 16 * 1024
"""Maximum bytes of unsent responses per client. Above this, the client's next request waits."""
_LINGER_TIMEOUT = 1.0
"""Seconds to read and discard input after the last response. If a connection is closed with unread
input, TCP resets it, and the reset may overtake the response (RFC 9112, section 9.6). During a
drain, this is also the maximum time for the first request of a new client."""


class Connection(asyncio.Protocol, ResponseSink):
    """The protocol of one client connection. Pipelined requests wait in the parser.

    When the loop's clock has passed ``deadline``, the connection table calls `on_timeout`.
    """

    def __init__(self, context: ServerContext) -> None:
        self.deadline = inf
        self._context = context
        self._serving = context.serving
        self._loop = context.loop
        self.state: State = IDLE
        self._parser = RequestParser(self._serving.limits.max_body)
        self._match: Match | None = None  # the fast path
        self._awaits_body = False  # the fast path knows the head, and the body is incomplete
        self._exchange: Exchange | Pending | None = None
        self._authenticated: bool | None = None  # the last key was valid; None: no response yet
        self._eof = False
        self._reading_paused = False
        self._max_buffer = 0
        self._blocked = False  # the client does not read

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("Transport", transport)
        self._transport.set_write_buffer_limits(high=_MAX_UNSENT)
        self._peer = Peer.of(transport)
        connections = self._context.connections
        self.update_serving()  # a reload may have replaced `serving` during the handshake
        self._set_timeout(self._serving.limits.idle_timeout)
        if connections.draining:
            self.drain()
        if not connections.register(self):
            self._reject(HTTPStatus.SERVICE_UNAVAILABLE)
            if connections.overloaded:
                self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self.state is IDLE and not self._blocked:
            known = self._match(data) if self._match is not None else None
            # The usual case: one whole request, without a copy in the parser.
            if known is not None and known.size == len(data) and self._respond(known, data):
                return
        elif self.state in _NOT_RECEIVING:
            return
        parser = self._parser
        had_started = parser.has_started
        parser.feed(data)
        if self.state is IDLE and not parser.is_empty:
            self.state = READING
        self._bound_read_ahead()
        if self.state is RESPONDING:
            return
        if not had_started and not parser.has_head and parser.has_started:
            self._set_timeout(self._serving.limits.idle_timeout)
        if not self._blocked:
            self._start_next()

    def eof_received(self) -> bool:
        """Serve the requests received before EOF. A TLS connection closes at EOF."""
        self._eof = True
        half_open = self._peer.protocol == "http"
        self._start_next()
        if self.state is QUEUED or (self._blocked and self.state is not CLOSING):
            return half_open  # buffered requests are still answered
        if self._exchange is None:
            self.state = CLOSING
            return False
        if self._parser.is_empty:
            self._exchange.close_after_response()
        return half_open

    def connection_lost(self, _: Exception | None) -> None:
        self.state = CLOSED
        self.deadline = inf
        self._context.leave_queues(self.resume)
        self._context.connections.unregister(self)
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.on_disconnect()

    def pause_writing(self) -> None:
        self._blocked = True
        self._set_timeout(self._serving.limits.idle_timeout)

    def resume_writing(self) -> None:
        self._blocked = False
        if self.state is RESPONDING:
            self.deadline = inf
        elif self.state not in _NOT_RECEIVING:
            self._next_request()

    # Called by the exchange.

    def send(self, data: bytes) -> Future[None]:
        if self.state not in _NOT_RECEIVING:  # uvloop raises after `write_eof`
            self._transport.write(data)
        return self._context.written

    def on_response_complete(self, *, keep_alive: bool) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            # The fast path responds to valid keys alone.
            self._authenticated = not isinstance(exchange, Exchange) or exchange.authenticated
        if self.state not in _NOT_RECEIVING:
            self._end_response(keep_alive=keep_alive)

    def reset(self) -> None:
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _end_response(self, *, keep_alive: bool) -> None:
        self.state = IDLE if self._parser.is_empty else READING
        if not keep_alive:
            self._linger_close()
        elif not self._blocked:
            self._next_request()

    # Called by the connection table.

    def on_timeout(self) -> None:
        """Close the connection of a client that was too slow to send or to read.

        Start a queued request, because its client was not slow. An incomplete request gets 408.
        """
        if self.state is CLOSING or self._blocked:
            self._transport.abort()
        elif self.state is IDLE:
            self._linger_close()
        else:
            if self.state is QUEUED:
                self._context.leave_queues(self.resume)
                self.resume()
            if self.state not in _NOT_RECEIVING and self.deadline <= self._loop.time():
                self._reject(HTTPStatus.REQUEST_TIMEOUT)

    def update_serving(self) -> None:
        """Use the server's latest application and limits from the next request on.

        A request in progress completes in the application that received it.
        """
        self._serving = serving = self._context.serving
        self._parser.max_body = serving.limits.max_body
        # It never decreases, because a request in progress may exceed the new limit.
        self._max_buffer = max(self._max_buffer, MAX_HEAD + serving.limits.max_body)
        self._peer = Peer(self._peer.remote_ip, self._peer.protocol, serving.proxies)
        fast_path = None if self._context.connections.draining else serving.fast_path
        self._match = None if fast_path is None else fast_path(self._peer)
        if self._exchange is not None and not serving.keep_alive:
            self._exchange.close_after_response()

    def drain(self) -> None:
        """Close after the current request. If there is none, close immediately.

        But a client that has sent no request so far gets `_LINGER_TIMEOUT` seconds to send one.
        """
        self._match = None  # responses of the fast path leave the connection open
        if self._exchange is not None:
            self._exchange.close_after_response()
        elif self.state is IDLE and self._authenticated is not None:
            self._linger_close()
        elif self.state is IDLE:
            self.deadline = min(self.deadline, self._loop.time() + _LINGER_TIMEOUT)

    def abort(self) -> None:
        """Close immediately; unsent data is lost."""
        self._transport.abort()

    # Called by the fair queue.

    def resume(self) -> None:
        """Start the next request if it is complete."""
        if self.state in _NOT_READING:
            return
        self.state = READING
        if self._blocked or self._serve_buffered():
            return
        parser = self._parser
        known = parser.head
        try:
            head = parser.read_head()
            if head is not None and head is not known and head.expects_continue:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = parser.read_body()
        except HttpError as error:
            self._reject(error.status)
            return
        if head is not None and body is not None:
            self._dispatch(head, body)
        elif self._eof:
            self._linger_close()
        else:
            if parser.is_empty:
                self.state = IDLE
            elif head is not known and not self._awaits_body:
                self._set_timeout(self._serving.limits.body_timeout)
            self._bound_read_ahead()

    def _serve_buffered(self) -> bool:
        """Serve the next buffered request by the fast path. Return whether this is possible."""
        buffer = self._parser.buffer
        match = None if self._eof or self._parser.head is not None else self._match
        known = match(buffer) if match is not None else None
        if known is None:
            return False
        if known.size <= len(buffer):
            return self._respond(known, bytes(buffer[: known.size]))
        if not self._awaits_body:
            self._awaits_body = True
            self._set_timeout(self._serving.limits.body_timeout)
        self._bound_read_ahead()
        return True

    def _respond(self, known: KnownRequest, data: bytes) -> bool:
        """Respond by the fast path. Return false if the application must handle the request."""
        response = known.respond(data, self)
        if response is None:
            return False
        self._awaits_body = False
        is_buffered = bool(self._parser.buffer)
        if is_buffered:
            self._parser.skip(known.size)
        if isinstance(response, bytes):
            self._authenticated = True
            self._transport.write(response)
            if is_buffered or not known.keep_alive:
                self._end_response(keep_alive=known.keep_alive)
            else:  # the usual case
                self.deadline = self._loop.time() + self._serving.limits.idle_timeout
        else:
            self.state = RESPONDING
            self.deadline = inf
            self._exchange = response
        return True

    def _start_next(self) -> None:
        """Start the next request, by the fast path (authenticated clients only) or by a queue.

        An incomplete head is not queued, because `resume` only checks its size and line ends.
        """
        if not self._parser.has_head:
            self.resume()
        elif self.state not in _NOT_READING:
            is_first = self._authenticated and self.state is not QUEUED
            if not (is_first and self._serve_buffered()):
                self._enqueue()

    def _enqueue(self) -> None:
        self.state = QUEUED
        context = self._context
        queue = context.authenticated if self._authenticated else context.unauthenticated
        queue.enqueue(self.resume, rejected=self._authenticated is False)

    def _next_request(self) -> None:
        """Continue after a response: queue the next buffered request, or wait for one."""
        if self._eof and self.state is IDLE:
            self._linger_close()
            return
        keep_alive = self._serving.limits.keep_alive_timeout if self.state is IDLE else None
        self._set_timeout(keep_alive or self._serving.limits.idle_timeout)
        self._bound_read_ahead()
        if self.state is not IDLE:
            self._enqueue()

    def _dispatch(self, head: RequestHead, body: bytes) -> None:
        self.state = RESPONDING
        self._awaits_body = False
        if not self._blocked:  # a client that does not read "100 Continue" keeps its deadline
            self.deadline = inf
        self._exchange = exchange = Exchange(self, head, self._peer)
        if self._context.connections.draining or not self._serving.keep_alive:
            exchange.close_after_response()
        try:
            exchange.dispatch(self._serving.app, body)
        except HTTPInputError:  # Tornado cannot parse the query string
            self._exchange = None
            self._reject(HTTPStatus.BAD_REQUEST)
            return
        if self._eof and self._parser.is_empty:
            exchange.close_after_response()

    def _reject(self, status: HTTPStatus) -> None:
        self._transport.write(self._serving.reject(status, self._peer.remote_ip))
        self._linger_close()

    def _linger_close(self) -> None:
        """Send the buffered output and close; discard further input."""
        self.state = CLOSING
        self._parser.buffer.clear()
        unsent = self._transport.get_write_buffer_size()
        self._set_timeout(self._serving.limits.idle_timeout if unsent else _LINGER_TIMEOUT)
        if self._transport.can_write_eof() and not self._eof:
            self._transport.resume_reading()
            self._transport.write_eof()
        else:
            self._transport.close()

    def _bound_read_ahead(self) -> None:
        """Pause reading while the buffer exceeds the size of the largest valid request."""
        is_full = len(self._parser.buffer) > self._max_buffer
        if is_full != self._reading_paused:
            self._reading_paused = is_full
            if is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _set_timeout(self, seconds: float) -> None:
        self.deadline = self._loop.time() + seconds

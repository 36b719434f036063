"""One connection: bytes in, whole requests to the application, answers out in order."""

from __future__ import annotations

import asyncio
from asyncio import Future, Transport
from math import inf
from typing import TYPE_CHECKING, cast

from tornado_idv.server.body import ChunkedBody
from tornado_idv.server.exchange import Exchange, Peer
from tornado_idv.server.head import HEAD_END, MAX_HEAD, Head, HeadReader, take_head
from tornado_idv.server.last_head import LastHead, learn, recall
from tornado_idv.web.answers import new_request_id, refusal_bytes
from tornado_idv.web.packets import KnownHead
from tornado_idv.web.proxies import peer_address
from tornado_idv.web.refusals import Refusal, Refused

if TYPE_CHECKING:
    from tornado_idv.server.listener import Listener

_MAX_PIPELINED = 64 * 1024
"""Bytes read ahead of the request under way, once the client has shown a valid key."""
_MAX_SEGMENT = 4 * 1024
"""Larger segments are copied to the buffer only, and their heads are not remembered."""
_MAX_UNSENT = 16 * 1024
"""Bytes of responses kept for a client that does not read, before the next request waits."""
_LINGER = 1.0
"""Seconds that a refused caller may go on sending: a connection closed on unread bytes is
reset, and the reset may overtake the refusal (RFC 9112, 9.6)."""


class Connection(asyncio.Protocol):
    """Reads one request at a time; what a caller sends ahead waits its turn.

    ``deadline`` is the time, by the loop's clock, at which `expire` is to be called.
    """

    def __init__(self, listener: Listener) -> None:
        self.deadline = inf
        self._listener = listener
        self._limits = listener.limits
        self._buffer = bytearray()
        self._heads = HeadReader(self._limits.max_body)
        self._head: Head | None = None
        self._chunks: ChunkedBody | None = None
        self._exchange: Exchange | None = None
        self._packet = b""  # what came by itself: the next request, if it is just that
        self._last = LastHead()
        self._has_key = False  # whether the last request had a good one
        self._leaving = False
        self._ended = False  # the caller sends no more
        self._writable: Future[None] | None = None  # while the caller does not read
        self._transport: Transport
        self._peer: Peer

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("Transport", transport)
        self._transport.set_write_buffer_limits(high=_MAX_UNSENT)
        address = transport.get_extra_info("peername")
        scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        ip = peer_address(address[0]) if address else ""
        self._peer = Peer(ip, scheme, self._listener.proxies)
        self._wait(self._limits.idle_timeout)
        if not self._listener.admit(self):
            self._refuse(Refusal.OVERLOADED)
            if self._listener.crowded:
                self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._leaving:
            return
        if not self._buffer and self._head is None and self._exchange is None:
            self._packet = b""
            if self._writable is None:
                if self._take_again(data):
                    return
                self._packet = data if len(data) <= _MAX_SEGMENT else b""
            if data.strip(b"\r\n"):  # empty lines are let pass, and keep nobody here
                self._wait(self._limits.idle_timeout)
        elif self._exchange is None:
            self._packet = b""  # a request that comes in pieces is not to be learned
            if self._buffer == b"\r" and data.strip(b"\r\n"):
                self._wait(self._limits.idle_timeout)  # it begins here, after an empty line
        self._buffer += data
        if len(self._buffer) > self._max_buffered:
            self._transport.pause_reading()
        if self._exchange is None and self._writable is None:
            self._advance_in_turn()

    def eof_received(self) -> bool:
        """A caller who will send no more still gets the answers to what was whole.

        Not under TLS, where the end of one side is the end of both.
        """
        self._ended = True
        stays = self._peer.protocol == "http"
        if stays:
            self._advance_in_turn()
        else:
            self.resume()
        if self._writable is not None and not self._leaving:
            return stays  # the rest is answered once the caller reads on
        if self in self._listener.queue:
            return stays
        if self._exchange is None:
            self._leaving = True
            return False
        if not self._buffer:
            self._exchange.last()
        return stays

    def connection_lost(self, _: Exception | None) -> None:
        self._leaving = True
        self.deadline = inf
        self._listener.queue.cancel(self)
        self._listener.forget(self)
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.lost()
        self._write_on()

    def pause_writing(self) -> None:
        self._writable = self._listener.loop.create_future()
        self._wait(self._limits.idle_timeout)

    def resume_writing(self) -> None:
        self._write_on()
        if not self._leaving:
            self._read_on()

    # What the exchange calls.

    def send(self, data: bytes) -> Future[None]:
        if not self._leaving:  # who has left gets nothing, and uvloop raises
            self._transport.write(data)
        return self._writable or self._listener.done

    def answered(self, *, keep_alive: bool) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._has_key = exchange.has_key
            if exchange.packet:
                self._last = learn(self._last, exchange, self._listener.packets)
        if self._leaving:
            return
        if not keep_alive:
            self._leave()
            return
        if self._writable is None:
            self._read_on()

    # What the listener calls.

    @property
    def idle(self) -> bool:
        """Whether nothing of a request is here."""
        return self._exchange is None and self._head is None and not self._buffer

    def expire(self) -> None:
        """The deadline has passed: the caller was too slow with the next bytes, or to read.

        Whoever waits for a turn goes ahead of it, and is too slow unless a whole request is here.
        """
        if self._leaving or self._writable is not None:
            self._transport.abort()
        elif self.idle:
            self._leave()
        else:
            queue = self._listener.queue
            if self in queue:
                queue.cancel(self)
                self.resume()
            if not self._leaving and self.deadline <= self._listener.loop.time():
                self._refuse(Refusal.REQUEST_TIMEOUT)

    def drain(self) -> None:
        """Leaves after the request that is under way, or at once if there is none."""
        if self._exchange is not None:
            self._exchange.last()
        elif self.idle:
            self._leave()

    def abort(self) -> None:
        """Ends the connection as it is."""
        self._transport.abort()

    # What the fair queue calls.

    def resume(self) -> None:
        """Begins the next request, if it is whole and the caller reads the answers."""
        if self._exchange is not None or self._leaving or self._writable is not None:
            return
        try:
            body = self._next_body()
        except Refused as refused:
            self._refuse(refused.refusal)
            return
        if body is not None and self._head is not None:
            self._begin(self._head, body)
        elif self._ended:
            self._leave()
        elif len(self._buffer) <= self._max_buffered:
            self._transport.resume_reading()

    # The rest is its own business.

    @property
    def _max_buffered(self) -> int:
        """Bytes of requests to read ahead; always room for the one that is to be next."""
        return (_MAX_PIPELINED if self._has_key else MAX_HEAD) + self._limits.max_body

    def _take_again(self, packet: bytes) -> bool:
        """Answers or begins one whole request whose head came before; says whether this is one."""
        last = self._last
        if len(packet) != last.size or not packet.startswith(last.data):
            last = self._last = recall(packet, self._peer, self._listener.packets)
        body = packet[len(last.data) :]
        if last.known is not None and self._answer_known(last.known, body):
            return True
        if last.head is None:
            return False
        self._packet = packet
        if self._has_key:
            self._begin(last.head, body)
        else:
            self._head = last.head
            self._buffer += body
            self._listener.queue.enqueue(self)
        return True

    def _answer_known(self, head: KnownHead, body: bytes) -> bool:
        """Answers what was understood before, without the application."""
        packets, query = self._listener.packets, head.queries.get(body)
        if packets is None or query is None:
            return False
        answer = packets.answer(query, head, self._last.remote)
        if answer is None:
            return False
        self._transport.write(answer)
        self._has_key = True
        self._wait(self._limits.idle_timeout)
        return True

    def _write_on(self) -> None:
        """Lets go on whoever waits to write, be it in vain."""
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set_result(None)

    def _read_on(self) -> None:
        """Goes on to the next request, of which something may be here already."""
        if self._exchange is not None:
            self.deadline = inf
            return
        if self._ended and not self._buffer:
            self._leave()
            return
        self._wait(self._limits.idle_timeout)
        if len(self._buffer) <= self._max_buffered:
            self._transport.resume_reading()
        if self._buffer:
            if self._has_key:
                self._listener.loop.call_soon(self.resume)
            else:
                self._listener.queue.enqueue(self)

    def _advance_in_turn(self) -> None:
        """Advances, at once only for a caller who has a good key, or with little to do."""
        if self._has_key or (self._head is None and HEAD_END not in self._buffer):
            self.resume()
        else:
            self._listener.queue.enqueue(self)

    def _next_body(self) -> bytes | None:
        """The body of the next request, whose head is then `_head`; ``None`` until it is whole."""
        if self._head is not None:
            return self._take_body(self._head)
        data = take_head(self._buffer)
        if data is None:
            return None
        self._head = head = self._heads.read(data)
        self._chunks = ChunkedBody(self._limits.max_body) if head.length is None else None
        if head.expects_continue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self._take_body(head)
        if body is None:
            self._wait(self._limits.body_timeout)
        return body

    def _take_body(self, head: Head) -> bytes | None:
        buffer = self._buffer
        if self._chunks is not None:
            return bytes(self._chunks.content) if self._chunks.take(buffer) else None
        length = head.length or 0
        if len(buffer) < length:
            return None
        body = bytes(buffer) if len(buffer) == length else bytes(buffer[:length])
        del buffer[:length]
        return body

    def _begin(self, head: Head, body: bytes) -> None:
        self.deadline = inf
        self._exchange = exchange = Exchange(self, head, self._peer, self._packet)
        self._packet = b""
        self._head = self._chunks = None
        if self._listener.draining:
            exchange.last()
        exchange.begin(self._listener.app, body)
        if self._ended and not self._buffer:
            exchange.last()

    def _refuse(self, refusal: Refusal) -> None:
        request_id = new_request_id()
        self._transport.write(refusal_bytes(refusal, request_id))
        log = self._listener.access_log
        if log is not None:
            remote = self._peer.remote_ip
            log.refused(
                status=refusal.status, code=refusal.code, remote=remote, request_id=request_id
            )
        self._leave()

    def _leave(self) -> None:
        """Sends what is written, then the end; what still comes is read and dropped."""
        self._leaving = True
        self._buffer.clear()
        self._packet = b""
        unsent = self._transport.get_write_buffer_size()
        self._wait(self._limits.idle_timeout if unsent else _LINGER)
        if self._transport.can_write_eof() and not self._ended:
            self._transport.resume_reading()
            self._transport.write_eof()
        else:
            self._transport.close()

    def _wait(self, seconds: float) -> None:
        self.deadline = self._listener.loop.time() + seconds

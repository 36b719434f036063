"""Requests with a known head on a connection: in one segment, in several, or pipelined."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Transport
from math import inf

from tornado_idv.http.connections import READING, RESPONDING, HttpLimits, State
from tornado_idv.http.context import FastPath, Pending
from tornado_idv.http.exchange import Exchange, ResponseSink
from tornado_idv.http.parser import RequestParser


class KnownRequests(asyncio.Protocol, ResponseSink, ABC):
    """The part of a connection that serves such requests by the fast path."""

    deadline: float
    state: State
    _authenticated: bool | None
    _exchange: Exchange | Pending | None
    _awaits_body: bool
    """Whether the body of the next request, which is known, has not arrived completely."""
    _held: bytes
    """The beginning of such a request, if nothing else is buffered."""
    _limits: HttpLimits
    _loop: AbstractEventLoop
    _parser: RequestParser
    _transport: Transport

    def _serve_new(self, fast_path: FastPath, data: bytes) -> bool:
        """Serve ``data``, which arrived while nothing was buffered, if it is a known request.

        Keep it if its body is missing, until `_serve_buffered`.
        """
        known = fast_path.match(data)
        if known is None:
            return False
        size, match = known
        if size != len(data):
            if size < len(data) or not self._authenticated:
                return False
            self._held = data
            self._await_body()
            return True
        response = fast_path.respond(match, data[match.end() :], self)
        if isinstance(response, bytes) and fast_path.keep_alive:  # as nearly always
            self._transport.write(response)
            self._authenticated, self._awaits_body = True, False
            self.deadline = self._loop.time() + self._limits.idle_timeout
            return True
        return self._send(fast_path, response)

    def _serve_buffered(self, fast_path: FastPath) -> bool:
        """Serve the next request that is buffered, if its head is known; wait for its body."""
        buffer = self._parser.buffer
        known = fast_path.match(buffer)
        if known is None:
            return False
        size, match = known
        if size > len(buffer):
            self._await_body()
            self._resume_reading()
            return True
        response = fast_path.respond(match, bytes(buffer[match.end() : size]), self)
        if response is not None:
            self._parser.skip(size)
        return self._send(fast_path, response)

    def _await_body(self) -> None:
        self.state = READING
        if not self._awaits_body:
            self._awaits_body = True
            self._set_timeout(self._limits.body_timeout)

    def _send(self, fast_path: FastPath, response: bytes | Pending | None) -> bool:
        if response is None:
            return False
        self._awaits_body = False
        if isinstance(response, bytes):
            self._authenticated = True
            self._transport.write(response)
            self._end_response(keep_alive=fast_path.keep_alive)
        else:
            self.state = RESPONDING
            self.deadline = inf
            self._exchange = response
        return True

    @abstractmethod
    def _end_response(self, *, keep_alive: bool) -> None:
        """Continue with the next request, or close the connection."""

    @abstractmethod
    def _resume_reading(self) -> None:
        """Read again if there is room."""

    @abstractmethod
    def _set_timeout(self, seconds: float) -> None:
        """Set the time at which the client has been too slow."""

"""Read-ahead limit of a client: reading pauses while too much of it is buffered."""

from __future__ import annotations

from asyncio import BaseTransport, Transport

from tornado_idv.http.parser import MAX_HEAD, RequestParser

_MAX_PIPELINED = 64 * 1024
"""Bytes that an authenticated client may send ahead."""
_TLS_READ_BUFFER = 16 * 1024


class ReadAhead:
    """Pauses and resumes reading, by what is buffered in the parser.

    That may be one request with a body of ``max_body`` bytes, and more only of an authenticated
    client.
    """

    __slots__ = ("_parser", "_paused", "_transport")

    def __init__(self, transport: Transport, parser: RequestParser) -> None:
        self._transport = transport
        self._parser = parser
        self._paused = False

    def pause(self, max_body: int, *, authenticated: bool | None) -> None:
        """Pause if too much is buffered."""
        if len(self._parser.buffer) > _limit(max_body, authenticated=authenticated):
            self._paused = True
            self._transport.pause_reading()

    def resume(self, max_body: int, *, authenticated: bool | None) -> None:
        """Read again if there is room."""
        if not self._paused:
            return
        if len(self._parser.buffer) <= _limit(max_body, authenticated=authenticated):
            self._paused = False
            self._transport.resume_reading()


def limit_tls_read_buffer(transport: BaseTransport) -> None:
    """Bound what is read ahead of a paused TLS connection, which is 256 KiB by default.

    asyncio and uvloop offer this by a method that `asyncio.Transport` does not declare.
    """
    set_limits = getattr(transport, "set_read_buffer_limits", None)
    if set_limits is not None:
        set_limits(high=_TLS_READ_BUFFER)


def _limit(max_body: int, *, authenticated: bool | None) -> int:
    return (_MAX_PIPELINED if authenticated else MAX_HEAD) + max_body

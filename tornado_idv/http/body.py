"""A strict decoder for chunked request bodies (RFC 9112, section 7.1)."""

import re
from http import HTTPStatus

from tornado_idv.http.head import HttpError

_MAX_LINE = 256
_MAX_FRAMING = 16 * 1024
"""Maximum total bytes of the chunk-size lines of a body, without line ends. The size line of a
one-byte chunk has one byte. So a body of the default ``server.max_body`` may have 16,384 chunks."""
_MAX_TRAILERS = 1024
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")


class ChunkedBody:
    """Decodes one chunked body. Chunk extensions and trailers are checked and discarded."""

    def __init__(self, max_body: int) -> None:
        self.content = bytearray()
        self._max_body = max_body
        self._framing = 0
        self._trailers: int | None = None  # bytes of trailers; None before the last chunk

    def take(self, buffer: bytearray) -> bool:
        """Move complete chunks from ``buffer`` to `content`; return whether the body has ended.

        Raises `HttpError` if the body or its framing is malformed or too large.
        """
        at = 0
        while (end := self._end(buffer, at)) is not None:
            line = bytes(buffer[at:end])
            at = end + 2
            if self._trailers is not None:
                if not line:
                    del buffer[:at]
                    return True
                self._trailers += len(line)
                if self._trailers > _MAX_TRAILERS or not _TRAILER.fullmatch(line):
                    raise HttpError(HTTPStatus.BAD_REQUEST)
            elif size := self._size(line):
                if len(buffer) < at + size + 2:
                    at = end - len(line)  # wait for the complete chunk
                    break
                if buffer[at + size : at + size + 2] != b"\r\n":
                    raise HttpError(HTTPStatus.BAD_REQUEST)
                self._framing += len(line)
                if self._framing > _MAX_FRAMING:
                    raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                self.content += buffer[at : at + size]
                at += size + 2
            else:
                self._trailers = 0
        del buffer[:at]
        return False

    def _end(self, buffer: bytearray, at: int) -> int | None:
        """Return the index of the line end after ``at``, or ``None`` for an incomplete line."""
        end = buffer.find(b"\r\n", at, at + _MAX_LINE)
        if end < 0:
            rest = buffer[at : at + _MAX_LINE]
            if len(rest) == _MAX_LINE or b"\n" in rest or b"\r" in rest[:-1]:
                raise HttpError(HTTPStatus.BAD_REQUEST)
            return None
        return end

    def _size(self, line: bytes) -> int:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise HttpError(HTTPStatus.BAD_REQUEST)
        size = int(match[1], 16)
        if size > self._max_body - len(self.content):
            raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return size

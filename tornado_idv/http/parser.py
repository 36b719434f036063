"""Split the bytes of a connection into requests, without I/O."""

import re
from http import HTTPStatus

from tornado_idv.http.head import HttpError, RequestHead, parse_head

MAX_HEAD = 16 * 1024
_HEAD_END = b"\r\n\r\n"
_MAX_LINE = 256
_MAX_FRAMING = 16 * 1024
"""Maximum total bytes of the chunk-size lines of a body, without line ends. The size line of a
one-byte chunk has one byte. So a body of the default ``server.max_body`` may have 16,384 chunks."""
_MAX_TRAILERS = 1024
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")


class RequestParser:
    """Parser of pipelined HTTP/1.1 requests. A change of ``max_body`` applies to the next head."""

    def __init__(self, max_body: int) -> None:
        self.head: RequestHead | None = None
        """The head of the current request, until its body has been read."""
        self.buffer = bytearray()
        """Received bytes that are not parsed yet."""
        self.max_body = max_body
        self._head_size = 0  # size of the next head; 0 before its end has arrived
        self._searched = 0  # bytes of the buffer already searched for the end of the head
        self._chunks: ChunkedBody | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is buffered."""
        return not self.buffer and self.head is None

    @property
    def has_started(self) -> bool:
        """Return whether a request has begun to arrive. Empty lines before it do not count."""
        return self.head is not None or (bool(self.buffer) and self.buffer != b"\r")

    @property
    def has_head(self) -> bool:
        """Return whether the head of the next request is complete."""
        return self.head is not None or self._head_size > 0

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self.buffer += data
        if not self._head_size and self.head is None:
            self._find_head()

    def read_head(self) -> RequestHead | None:
        """Return the head of the current request, or ``None`` if it is incomplete.

        The next head is returned only after `read_body` has returned a body. Raises `HttpError`.
        """
        if self.head is not None:
            return self.head
        buffer, size = self.buffer, self._head_size
        if 0 < size <= MAX_HEAD:
            self.head = head = parse_head(bytes(buffer[:size]), self.max_body)
            del buffer[:size]
            self._head_size = self._searched = 0
            if head.content_length is None:
                self._chunks = ChunkedBody(self.max_body)
            return head
        start = buffer[:MAX_HEAD]
        if start.count(b"\n") != start.count(b"\r\n"):
            raise HttpError(HTTPStatus.BAD_REQUEST)  # after a bare LF the head would never end
        if len(buffer) > MAX_HEAD:
            raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return None

    def read_body(self) -> bytes | None:
        """Return the body of `head`, or ``None`` if it is incomplete.

        After a complete body, the next head can be read. Raises `HttpError` for malformed chunks.
        """
        buffer = self.buffer
        if self.head is None:
            return None
        if self._chunks is not None:
            if not self._chunks.take(buffer):
                return None
            body = bytes(self._chunks.content)
        else:
            length = self.head.content_length or 0
            if len(buffer) < length:
                return None
            body = bytes(buffer if len(buffer) == length else buffer[:length])
            del buffer[:length]
        self.head = self._chunks = None
        if buffer:
            self._find_head()
        return body

    def skip(self, size: int) -> None:
        """Remove a whole request from the start of `buffer`."""
        del self.buffer[:size]
        self._head_size = self._searched = 0
        if self.buffer:
            self._find_head()

    def _find_head(self) -> None:
        buffer = self.buffer
        while buffer.startswith(b"\r\n"):
            del buffer[:2]  # empty lines before a request are ignored (RFC 9112, 2.2)
        at = buffer.find(_HEAD_END, max(0, self._searched - len(_HEAD_END) + 1))
        self._searched = len(buffer)
        self._head_size = 0 if at < 0 else at + len(_HEAD_END)


class ChunkedBody:
    """Decodes a chunked body (RFC 9112, 7.1). Extensions and trailers are checked and discarded."""

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

"""The exception for a request that the HTTP server rejects."""

from __future__ import annotations

from http import HTTPStatus


class HttpError(Exception):
    """Raised to reject a request with ``status``. Its connection is then closed.

    After a framing error, the start of the next request is unknown, so further input must not be
    read (RFC 9112, section 9.6).
    """

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status

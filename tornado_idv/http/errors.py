"""The error of a request rejected by the server."""

from __future__ import annotations

from http import HTTPStatus


class HttpError(Exception):
    """The request is rejected with ``status``, and its connection is closed.

    After a framing error the position of the next request is unknown: nothing after it may be read
    (RFC 9112, section 9.6).
    """

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status

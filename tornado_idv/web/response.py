"""Responses as bytes: the status line, the header fields of every response, the body."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import time
from email.utils import formatdate
from http.client import responses

from tornado_idv.web.errors import ApiError

FIELDS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Header fields of every response, of handlers and without one."""
_FIELD_LINES = "".join(f"{name}: {value}\r\n" for name, value in FIELDS.items())
REQUEST_ID = r"[A-Za-z0-9_.\-]{1,64}"
"""Pattern of a client's ``X-Request-ID`` that is used: short and harmless."""
_REQUEST_ID = re.compile(REQUEST_ID)


class _RequestIds:
    """Unique ids: random for the process, then counted."""

    def __init__(self) -> None:
        self._count = itertools.count()
        self.renew()

    def renew(self) -> None:
        """Begin with another random part: this is a forked process."""
        self._process = f"{secrets.token_hex(6)}-"

    def __call__(self) -> str:
        """Return a new id."""
        return f"{self._process}{next(self._count)}"


new_request_id = _RequestIds()
os.register_at_fork(after_in_child=new_request_id.renew)


def request_id_or_new(requested: str | None) -> str:
    """Return the client's ``X-Request-ID``, or a new id unless it matches `REQUEST_ID`."""
    if requested is not None and _REQUEST_ID.fullmatch(requested):
        return requested
    return new_request_id()


def build_response(
    status: int,
    request_id: str,
    body: bytes,
    fields: str = "",
    *,
    now: float | None = None,
) -> bytes:
    """Return a whole response; ``fields`` are further header lines, each with its line break.

    ``now`` is the Unix time, from a caller that has just read it.
    """
    second = int(time.time() if now is None else now)
    if _prefixes.second != second:
        _prefixes.begin(second)
    prefix = _prefixes[status]
    head = f"{prefix}{request_id}\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def build_error(error: ApiError, request_id: str, fields: str = "") -> bytes:
    """Return the whole response with an error record."""
    return build_response(error.status, request_id, error.body, f"{error.fields}{fields}")


class _Prefixes(dict[int, str]):
    """Beginnings of the responses of one second, up to the request id, by their status.

    A dictionary, since `functools.lru_cache` would build a key of second and status for each
    response.
    """

    second = 0

    def begin(self, second: int) -> None:
        """Begin another second."""
        self.clear()
        self.second = second

    def __missing__(self, status: int) -> str:
        self[status] = prefix = (
            f"HTTP/1.1 {status} {responses[status]}\r\n"
            "Content-Type: application/json\r\n"
            f"Date: {formatdate(self.second, usegmt=True)}\r\n"
            f"{_FIELD_LINES}X-Request-ID: "
        )
        return prefix


_prefixes = _Prefixes()

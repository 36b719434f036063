"""Responses as bytes: the status line, the header fields of every response, the body."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import time
from email.utils import formatdate
from functools import lru_cache
from http.client import responses

from tornado_idv.web.errors import ApiError

FIELDS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Header fields of every response, of handlers and without one."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


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
    """Return the client's ``X-Request-ID``, or a new id unless that is short and harmless."""
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
    own = f"{request_id}\r\n{fields}".encode("latin-1")
    if _prefixes.second != second:
        _prefixes.begin(second)
    return b"".join((_prefixes[status], own, _suffix(len(body)), body))


def build_error(error: ApiError, request_id: str, fields: str = "") -> bytes:
    """Return the whole response with an error record."""
    return build_response(error.status, request_id, error.body, f"{error.fields}{fields}")


def _prefix(status: int, second: int) -> bytes:
    prefix = (
        f"HTTP/1.1 {status} {responses[status]}\r\n"
        "Content-Type: application/json\r\n"
        f"Date: {formatdate(second, usegmt=True)}\r\n"
    )
    prefix += "".join(f"{name}: {value}\r\n" for name, value in FIELDS.items()) + "X-Request-ID: "
    return prefix.encode("ascii")


class _Prefixes(dict[int, bytes]):
    """Beginnings of the responses of one second, up to the request id, by their status.

    `functools.lru_cache` would build a key of both for each response.
    """

    second = 0

    def begin(self, second: int) -> None:
        """Begin another second."""
        self.clear()
        self.second = second

    def __missing__(self, status: int) -> bytes:
        self[status] = prefix = _prefix(status, self.second)
        return prefix


_prefixes = _Prefixes()


@lru_cache(maxsize=256)
def _suffix(length: int) -> bytes:
    """Return the last header line and the end of the head."""
    return b"Content-Length: %d\r\n\r\n" % length

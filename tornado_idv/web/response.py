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
from typing import Literal

from msgspec import Struct

CacheResult = Literal["hit", "shared", "miss", "stale", "coalesced"]

FIELDS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Header fields of every response, of handlers and without one."""
_FIELD_LINES = "".join(f"{name}: {value}\r\n" for name, value in FIELDS.items())
REQUEST_ID = r"[A-Za-z0-9_.\-]{1,64}"
"""Pattern of an accepted ``X-Request-ID``: short and harmless."""
_REQUEST_ID = re.compile(REQUEST_ID)
ECHOED = "X-IDV-Request-ID"
"""Returned in addition to ``X-Request-ID``: proxies may replace that."""


class Result(Struct, frozen=True, gc=False):
    """The response to a request; ``fields`` are header lines, each with its line break.

    The others are for counters and log: the ``code`` of the error record, the ``reason`` of the
    error for the operator, and the ``backend`` that answered or failed.
    """

    status: int
    body: bytes
    fields: str = ""
    code: str | None = None
    reason: str | None = None
    cache: CacheResult | None = None
    backend: str | None = None


_count = itertools.count()
_process = ""


def _begin_process() -> None:
    """Choose the random part of the ids of this process, also of a forked one."""
    global _process  # noqa: PLW0603 - an attribute takes longer, and each response has an id
    _process = f"{secrets.token_hex(6)}-"


_begin_process()
os.register_at_fork(after_in_child=_begin_process)


def new_request_id() -> str:
    """Return a unique id: random for the process, then counted."""
    return f"{_process}{next(_count)}"


def valid_request_id(requested: str) -> str | None:
    """Return the client's id if it matches `REQUEST_ID`."""
    return requested if _REQUEST_ID.fullmatch(requested) else None


def build_response(status: int, request_id: str, body: bytes, fields: str = "") -> bytes:
    """Return a whole response; ``fields`` are further header lines, each with its line break."""
    prefix = _prefix(int(time.time()), status)
    head = f"{prefix}{request_id}\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@lru_cache(maxsize=64)
def _prefix(second: int, status: int) -> str:
    """Return the beginning of a response, up to the request id."""
    return (
        f"HTTP/1.1 {status} {responses[status]}\r\n"
        "Content-Type: application/json\r\n"
        f"Date: {formatdate(second, usegmt=True)}\r\n"
        f"{_FIELD_LINES}X-Request-ID: "
    )

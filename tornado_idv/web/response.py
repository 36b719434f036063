"""Rendering of responses to bytes, without Tornado."""

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
"""Header fields of every response, also from the fast path and for rejected requests."""
_FIELD_LINES = "".join(f"{name}: {value}\r\n" for name, value in FIELDS.items())
REQUEST_ID = r"[A-Za-z0-9_.\-]{1,64}"
"""Pattern of an accepted ``X-Request-ID``. Such an id is short, and safe in headers and logs."""
_REQUEST_ID = re.compile(REQUEST_ID)
ECHOED = "X-IDV-Request-ID"
"""A request header that is returned unchanged, because proxies may replace ``X-Request-ID``."""


class Result(Struct, frozen=True, gc=False):
    """The response to a request, and its data for the counters and the access log.

    ``fields`` are additional header lines, each with its line break. ``code`` is the error code,
    ``reason`` the cause of the error, and ``backend`` the backend that answered or failed.
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
    """Choose the random prefix of this process's request ids. A forked process calls it again."""
    global _process  # noqa: PLW0603 - an attribute takes longer, and each response has an id
    _process = f"{secrets.token_hex(6)}-"


_begin_process()
os.register_at_fork(after_in_child=_begin_process)


def new_request_id() -> str:
    """Return a unique request id: the random prefix of the process, and a counter."""
    return f"{_process}{next(_count)}"


def valid_request_id(requested: str) -> str | None:
    """Return the client's id unchanged, or ``None`` if the id does not match `REQUEST_ID`."""
    return requested if _REQUEST_ID.fullmatch(requested) else None


def build_response(status: int, request_id: str, body: bytes, fields: str = "") -> bytes:
    """Return a complete response. ``fields`` are more header lines, each with its line break."""
    prefix = _prefix(int(time.time()), status)
    return f"{prefix}{request_id}\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body


@lru_cache(maxsize=64)
def _prefix(second: int, status: int) -> str:
    return (
        f"HTTP/1.1 {status} {responses[status]}\r\n"
        "Content-Type: application/json\r\n"
        f"Date: {formatdate(second, usegmt=True)}\r\n"
        f"{_FIELD_LINES}X-Request-ID: "
    )

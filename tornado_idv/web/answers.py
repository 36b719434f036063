"""Answers as bytes: the status line, the headers that every answer carries, the body."""

from __future__ import annotations

import itertools
import secrets
import time
from email.utils import formatdate
from functools import lru_cache
from http.client import responses

from tornado_idv.web.refusals import Refusal

_PROCESS = f"{secrets.token_hex(6)}-"
_COUNTER = itertools.count()


def new_request_id() -> str:
    """An id that no other request has: random for the process, then counted."""
    return f"{_PROCESS}{next(_COUNTER)}"


def answer_bytes(status: int, request_id: str, body: bytes, length: int, extra: str = "") -> bytes:
    """A whole answer; ``extra`` are further header lines, each with its line break.

    ``length`` is that of the body, also where there is none to send, as after HEAD.
    """
    own = f"{request_id}\r\n{extra}".encode("latin-1")
    return b"".join((_opening(status, int(time.time())), own, _closing(length), body))


@lru_cache(maxsize=64)
def _opening(status: int, second: int) -> bytes:
    """What all answers with this status begin with in a second, up to the request's own id."""
    opening = (
        f"HTTP/1.1 {status} {responses[status]}\r\n"
        "Content-Type: application/json\r\n"
        f"Date: {_date(second)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "X-Request-ID: "
    )
    return opening.encode("ascii")


@lru_cache(maxsize=256)
def _closing(length: int) -> bytes:
    """The last of the header lines, and the end of the head."""
    return b"Content-Length: %d\r\n\r\n" % length


def refusal_bytes(refusal: Refusal, request_id: str) -> bytes:
    """The whole answer to what is refused before a handler could see it."""
    extra = "".join(f"{name}: {value}\r\n" for name, value in refusal.headers.items())
    extra += "Connection: close\r\n"
    body = refusal.body
    return answer_bytes(refusal.status, request_id, body, len(body), extra)


def http_date() -> str:
    """The date of now as HTTP writes it (RFC 9110, 5.6.7); made once a second."""
    return _date(int(time.time()))


@lru_cache(maxsize=1)
def _date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)

"""Check of a server before its measurement: all servers must send equal responses."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import dataset
from benchmarks.wire.process import Server, post
from benchmarks.wire.traffic import KEY, body
from tornado_idv.keys.token import issue

_TOKEN = (401, "token_invalid_or_expired")
_FORMAT = (422, "invalid_format")


def check(server: Server, users: int) -> None:
    """Raise `RuntimeError` unless the server conforms to the API."""
    for number in (0, users // 2, users - 1):
        _check(server, body(f"@{dataset.nickname(number)}"), KEY, (200, dataset.record(number)))
    valid = body(f"@{dataset.nickname(0)}")
    for request, key, error in (
        (body("@unknown"), KEY, (404, "not_found")),
        (valid, None, _TOKEN),
        (valid, issue("measured"), _TOKEN),
        (body("unknown"), KEY, _FORMAT),
        (body("@" + "n" * 65), KEY, _FORMAT),
        (b'{"input":1}', KEY, _FORMAT),
        (b'{"input"', KEY, _FORMAT),
        (b"", KEY, _FORMAT),
    ):
        _check(server, request, key, error)


def check_constant(server: Server, _users: int) -> None:
    """Check a server with one constant response."""
    _check(server, body("@anyone"), KEY, (200, dataset.record(0)))


def _check(server: Server, request: bytes, key: str | None, expected: tuple[int, Any]) -> None:
    status, response = post(server.port, request, key)
    record = json.loads(response)
    result = record if status == 200 else record.get("code")  # noqa: PLR2004
    if (status, result) != expected:
        raise RuntimeError(f"{server.name} responds to {request!r} with {status} {response!r}")

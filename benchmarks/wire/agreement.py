"""A few questions that every server answers alike, asked before it is measured."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import people
from benchmarks.wire.server import Server, ask
from benchmarks.wire.traffic import KEY, body
from tornado_idv.keys.token import issue

_TOKEN = (401, "token_invalid_or_expired")
_FORMAT = (422, "invalid_format")


def check(server: Server, users: int) -> None:
    """Raises `RuntimeError` unless the server keeps the contract."""
    for number in (0, users // 2, users - 1):
        _check(server, body(f"@{people.nickname(number)}"), KEY, (200, people.record(number)))
    good = body(f"@{people.nickname(0)}")
    for question, key, refusal in (
        (body("@nobody"), KEY, (404, "not_found")),
        (good, None, _TOKEN),
        (good, issue("measured"), _TOKEN),
        (body("nobody"), KEY, _FORMAT),
        (body("@" + "n" * 65), KEY, _FORMAT),
        (b'{"input":1}', KEY, _FORMAT),
        (b'{"input"', KEY, _FORMAT),
        (b"", KEY, _FORMAT),
    ):
        _check(server, question, key, refusal)


def check_constant(server: Server, _users: int) -> None:
    """The same of a server that knows one answer."""
    _check(server, body("@anyone"), KEY, (200, people.record(0)))


def _check(server: Server, question: bytes, key: str | None, expected: tuple[int, Any]) -> None:
    status, answer = ask(server.port, question, key)
    record = json.loads(answer)
    told = record if status == 200 else record.get("code")  # noqa: PLR2004
    if (status, told) != expected:
        raise RuntimeError(f"{server.name} answers {question!r} with {status} {answer!r}")

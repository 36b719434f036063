"""A second response to an earlier request, on a connection that is kept, answers no lookup."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.databases.upstream_backends import PLAIN, upstream
from support.http.scripted_server import OWN_ID, REQUEST_ID, header, http
from tornado_idv import ByNickname, User

OWN = "X-IDV-Request-ID"
NOT_FOUND = b'{"status": "error", "code": "not_found"}'
RECORD: dict[str, Any] = {"by_nickname": {"url": "/?q={nickname}"}, "response": PLAIN}
UNCHECKED: dict[str, Any] = {
    **RECORD,
    "response": {"plan": "plan", "card_number": "card", "check_echo": False},
}
TWO_STEPS: dict[str, Any] = {
    "by_nickname": {"url": "/ids?q={nickname}", "then": {"url": "/?q={id}"}},
    "response": {**PLAIN, "id": "card"},
}


def response(nickname: str, *headers: str) -> bytes:
    """A response with a user, to a request of another instance or of ``RECORD``."""
    user = {"status": "ok", "plan": nickname, "card_number": "40", "nickname": f"@{nickname}"}
    user |= {"card": "40", "login": nickname, "profile_url": f"https://x.example/m/{nickname}"}
    return http(200, json.dumps(user).encode(), *headers)


async def plan_of(backend: Any, nickname: str) -> str | None:
    found = await backend.find(ByNickname(nickname))
    assert isinstance(found, User | None)
    return found.plan if found else None


@pytest.mark.parametrize("options", [{}, RECORD, UNCHECKED, TWO_STEPS], ids=str)
@pytest.mark.parametrize(
    "stray",
    [response("alice", f"{OWN}: earlier"), http(404, NOT_FOUND, f"{OWN}: earlier")],
    ids=["200", "404"],
)
async def test_second_response_does_not_answer_the_next_lookup(
    options: dict[str, Any], stray: bytes
) -> None:
    echo = f"{OWN}: {OWN_ID.decode()}"
    async with upstream(response("alice", echo), **options) as (server, backend):
        assert await plan_of(backend, "alice") == "alice"
        server.say(stray, response("bob", echo))
        assert await plan_of(backend, "bob") == "bob"
    ids = {header(each, OWN) for each in server.requests} - {None}
    assert len(ids) == (len(server.requests) if options == {} else 0)


@pytest.mark.parametrize(
    ("echoes", "more", "requests"),
    [
        (0, {}, 2),
        (1, {"echo_header": "X-Request-ID"}, 1),
        (1, {"echo_header": "X-Other"}, 2),
        (2, {"echo_header": "X-Request-ID"}, 2),
        (0, {"confirm_not_found": False}, 1),
    ],
)
async def test_requests_for_a_user_who_does_not_exist(
    echoes: int, more: dict[str, Any], requests: int
) -> None:
    """One on the kept connection; one more where nothing shows that its response belongs to it."""
    absent = http(404, NOT_FOUND, *[f"X-Request-ID: {REQUEST_ID.decode()}"] * echoes)
    async with upstream(absent, **RECORD, **more) as (server, backend):
        assert await plan_of(backend, "carol") is None
        assert len(server.requests) == 1
        server.say(response("bob"))
        assert await plan_of(backend, "bob") == "bob"
        assert len(server.requests) == 2
        server.say(absent)
        assert await plan_of(backend, "carol") is None
    assert len(server.requests) == 2 + requests

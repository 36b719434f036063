"""A second response to an earlier request, on a connection that is kept, answers no lookup."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from idv_upstream.backend import UpstreamBackend
from support.http.scripted_server import a_request, chunked, header, http
from tornado_idv import BackendResult, ByCard, ByNickname, Query, User
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import make_backend
from tornado_idv.registry import open_backends

SITE = "https://profiles.example/m/"
NOBODY = {"status": "error", "code": "not_found"}
OWN = "X-IDV-Request-ID"
USERS: dict[str, dict[str, Any]] = {
    f"user{number}": {
        "status": "ok",
        "plan": "Free",
        "card_number": f"40{number}",
        "nickname": f"@user{number}",
        "profile_url": f"{SITE}user{number}",
    }
    for number in range(0, 12, 2)
}
"""Every second one of those who are looked up."""
FIELDS = {"plan": "plan", "card_number": "card_number", "nickname": "nickname"}
SEARCH = {
    "by_nickname": {"url": "/?q={nickname}"},
    "by_card": {"url": "/?q={card_number}"},
    "response": {**FIELDS, "select": "found"},
}
RECORD = {**SEARCH, "response": FIELDS}
TWO_STEPS = {
    "by_nickname": {"url": "/ids?q={nickname}", "then": {"url": "/?q={id}"}},
    "by_card": {"url": "/ids?q={card_number}", "then": {"url": "/?q={id}"}},
    "response": {**FIELDS, "id": "card_number"},
}
UNCHECKED = {
    "by_nickname": {"url": "/?q={nickname}"},
    "response": {"plan": "plan", "card_number": "card_number", "check_echo": False},
}


class Late:
    """An upstream that is behind by one response on each connection that is kept.

    The second response to its first request is ``stray``, or the same again, and with ``None``
    there is none. ``echoes`` are the headers that it sends back.
    """

    def __init__(self, stray: bytes | None = b"", echoes: str = "") -> None:
        self.stray, self.echoes = stray, echoes
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        owed: list[bytes] = []
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while request := await a_request(reader):
                self.requests.append(request)
                answer = self.answer(request)
                is_doubled = not owed and self.stray is not None
                owed += [answer, self.stray or answer] if is_doubled else [answer]
                writer.write(owed.pop(0))
        writer.close()

    def answer(self, request: bytes) -> bytes:
        asked = request.split(b"\r\n\r\n")[1] or request.split(b" ")[1]
        wanted = [
            each
            for nickname, each in USERS.items()
            if any(asked.endswith(b"%b%b" % (name.encode(), end))
                   for name in (nickname, each["card_number"]) for end in (b"", b'"}'))
        ]  # fmt: skip
        echoed = [f"{each}: {header(request, each)}" for each in self.echoes.split()]
        if b"/search" in request:
            return chunked(json.dumps({"found": wanted}).encode())
        if wanted:
            return http(200, json.dumps(wanted[0]).encode(), *echoed)
        return http(404, json.dumps(NOBODY).encode(), *echoed)


@asynccontextmanager
async def behind(
    upstream: Late, folder: Path, options: dict[str, Any]
) -> AsyncIterator[AnyBackend]:
    async with await asyncio.start_server(upstream.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        path = "/search" if options is SEARCH else ""
        url = f"http://127.0.0.1:{port}{path}"
        backend = make_backend(UpstreamBackend, folder, base_url=url, timeout="5s", **options)
        async with open_backends([backend]):
            yield backend


def queries(options: dict[str, Any]) -> Iterator[Query]:
    for number in range(12):
        yield ByNickname(f"user{number}")
        if "by_card" in options or not options:
            yield ByCard(f"40{number}")


def true_result(query: Query) -> str | None:
    name = query.text.removeprefix("@")
    return next((each for each, user in USERS.items() if name in (each, user["card_number"])), None)


async def result_of(backend: AnyBackend, query: Query) -> str | None:
    found = await backend.find(query)
    user = found.user if isinstance(found, BackendResult) else found
    if isinstance(user, User) and isinstance(query, ByNickname):
        assert user.card_number == USERS[user.nickname]["card_number"]
    return user.nickname if isinstance(user, User) else None


@pytest.mark.parametrize("options", [{}, RECORD, SEARCH, TWO_STEPS, UNCHECKED])
@pytest.mark.parametrize(
    "stray",
    [
        b"",
        http(404, json.dumps(NOBODY).encode(), f"{OWN}: earlier"),
        http(204),
        http(200, json.dumps({**USERS["user2"], "found": []}).encode()),
    ],
    ids=["the same", "404 with an id", "204", "200"],
)
async def test_second_response_does_not_answer_the_next_lookup(
    tmp_path: Path, options: dict[str, Any], stray: bytes
) -> None:
    if options == {} and b"204" in stray:
        stray = b""  # such a status is an error of another instance
    async with behind(Late(stray), tmp_path, options) as backend:
        for query in queries(options):
            assert await result_of(backend, query) == true_result(query)


@pytest.mark.parametrize(
    ("options", "echoes"),
    [({}, OWN), ({**RECORD, "echo_header": "X-Correlation"}, "X-Correlation")],
)
async def test_each_request_has_an_id_of_its_own(
    tmp_path: Path, options: dict[str, Any], echoes: str
) -> None:
    """A response with the id of an earlier request does not answer a later one."""
    upstream = Late(echoes=echoes)
    async with behind(upstream, tmp_path, options) as backend:
        for query in queries(options):
            assert await result_of(backend, query) == true_result(query)
    ids = [header(each, echoes) for each in upstream.requests]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("echoes", "more", "requests"),
    [
        ("", {}, 2),
        ("X-Correlation", {"echo_header": "X-Correlation"}, 1),
        ("X-Other", {"echo_header": "X-Correlation"}, 2),
        ("X-Correlation X-Correlation", {"echo_header": "X-Correlation"}, 2),
        ("", {"confirm_not_found": False}, 1),
    ],
)
async def test_requests_for_a_user_who_does_not_exist(
    tmp_path: Path, echoes: str, more: dict[str, Any], requests: int
) -> None:
    """One on the kept connection; one more where nothing shows that its response belongs to it."""
    upstream = Late(None, echoes)
    async with behind(upstream, tmp_path, {**RECORD, **more}) as backend:
        assert await result_of(backend, ByNickname("user1")) is None
        assert len(upstream.requests) == 1
        assert await result_of(backend, ByNickname("user2")) == "user2"
        assert len(upstream.requests) == 2
        assert await result_of(backend, ByNickname("user3")) is None
    assert len(upstream.requests) == 2 + requests

"""An upstream behind the cache: each user is requested once."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.http.scripted_server import a_request, header, http
from tornado_idv import Answer, ByCard, ByNickname, Query
from tornado_idv.config.load import load
from tornado_idv.lookup.directory import Directory
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.service.directories import open_directory

USERS, LOOKUPS, CALLERS = 1000, 5000, 50
CONFIG = """\
profile_sites: [https://profiles.example]
auth: {{keys: [{{id: caller, sha256: {digest}}}]}}
cache: {{ttl: 5m, negative_ttl: 5m}}
backends:
  - name: crm
    kind: upstream
    base_url: http://127.0.0.1:{port}
    timeout: 10s
    echo_header: X-Own
    by_nickname: {{url: "/people/{{nickname}}"}}
    by_card: {{url: "/cards/{{card_number}}"}}
    response: {{plan: plan, card_number: card, nickname: login}}
"""


@dataclass
class Crm:
    """Knows every second user, and counts the requests for each."""

    port: int = 0
    asked: Counter[str] = field(default_factory=Counter)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while request := await a_request(reader):
                answer = self.answer(request.split(b" ", 2)[1].decode())
                own = f"\r\nX-Own: {header(request, 'X-Own')}\r\n".encode()
                writer.write(answer.replace(b"\r\n", own, 1))
        writer.close()

    def answer(self, path: str) -> bytes:
        self.asked[path] += 1
        number = int(re.sub(r"\D", "", path))
        if number % 2:
            return http(404, b"{}")
        return http(200, json.dumps(record(number)).encode())


def record(number: int) -> dict[str, str]:
    return {"login": f"user{number}", "card": str(number), "plan": "Free"}


@asynccontextmanager
async def behind_the_cache(tmp_path: Path) -> AsyncIterator[tuple[Crm, Directory]]:
    crm = Crm()
    async with await asyncio.start_server(crm.serve, "127.0.0.1", 0) as server:
        crm.port = server.sockets[0].getsockname()[1]
        config = tmp_path / "config.yaml"
        config.write_text(CONFIG.format(digest="0" * 64, port=crm.port), encoding="utf-8")
        manager = plugin_manager()
        settings = load(config, installed_kinds(manager), {})
        async with open_directory(settings, manager) as directory:
            yield crm, directory


def by_nickname(number: int) -> Query:
    return ByNickname(f"user{number}")


def by_card(number: int) -> Query:
    return ByCard(str(number))


def zipf() -> Sequence[int]:
    """The users of the lookups: the n-th 1/n as often as the first."""
    weights = [1 / rank for rank in range(1, USERS + 1)]
    return random.Random(7).choices(range(USERS), weights, k=LOOKUPS)


async def found_by(callers: int, directory: Directory, queries: Sequence[Query]) -> list[Answer]:
    """The answers, in order; each caller looks the next one up as soon as it has one."""
    answers: dict[int, Answer] = {}
    left = iter(enumerate(queries))

    async def call() -> None:
        for place, query in left:
            answers[place] = await directory.find(query)

    await asyncio.wait_for(asyncio.gather(*(call() for _ in range(callers))), 60)
    return [answers[place] for place in range(len(queries))]


@pytest.mark.slow
@pytest.mark.parametrize("by", [by_nickname, by_card], ids=["nickname", "card"])
async def test_each_user_is_requested_once(tmp_path: Path, by: Callable[[int], Query]) -> None:
    """Found or not, one response serves all lookups within the TTL."""
    numbers = zipf()
    async with behind_the_cache(tmp_path) as (crm, directory):
        answers = await found_by(CALLERS, directory, [by(number) for number in numbers])
    assert set(crm.asked.values()) == {1}
    assert len(crm.asked) == len(set(numbers))
    assert max(Counter(numbers).values()) > LOOKUPS / 10
    for number, answer in zip(numbers, answers, strict=True):
        known = answer.user and (answer.user.nickname, answer.user.card_number)
        assert known == (None if number % 2 else (f"user{number}", str(number)))


async def test_concurrent_lookups_share_one_request(tmp_path: Path) -> None:
    """The cache is empty for all of them."""
    async with behind_the_cache(tmp_path) as (crm, directory):
        answers = await found_by(CALLERS, directory, [by_nickname(2)] * CALLERS)
    assert crm.asked == {"/people/user2": 1}
    assert sum(answer.coalesced for answer in answers) == CALLERS - 1

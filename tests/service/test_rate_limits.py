"""The limits of `config.yaml` are those of the service, over real connections."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.http.http_server import until
from support.processes.reloads import Gated, config, reloadable
from support.processes.service import CARDS_ONLY_KEY, CONFIG, USERS, Client, serving

CARD = "/api/v1/identify/card"


@pytest.mark.parametrize("fields", [{}, {"X-IDV-Past-Cache": "1"}], ids=["", "past the cache"])
async def test_guesses_at_once_find_out_no_more_than_the_budget_of_misses(
    tmp_path: Path, fields: dict[str, str]
) -> None:
    """Also a user who exists is not found out beyond it."""
    async with reloadable(tmp_path, config(more="limits: {misses: 3/hour}\n")) as harness:
        (users,) = Gated.made
        users.gate.clear()
        post = Client(harness.service.port).post
        bodies = [b'{"card_number": "400%d"}' % number for number in range(8)]
        with ThreadPoolExecutor(8) as threads:
            asking = [threads.submit(post, CARD, each, fields) for each in bodies]
            await until(lambda: users.asked == len(asking))
            users.gate.set()
            replies = await asyncio.gather(*map(asyncio.wrap_future, asking))
    assert sorted(each.status for each in replies) == [404] * 3 + [429] * 5
    waits = [each.headers["retry-after"] for each in replies if each.status == 429]
    assert all(0 < int(wait) <= 1200 for wait in waits)


@pytest.mark.parametrize(
    ("own", "statuses"),
    [
        ("{requests: 100/hour}", [404, 404, 404]),
        ("{misses: 1/hour}", [404, 429, 429]),
        ("{misses: {rate: 1/hour, log_only: true}}", [404, 404, 429]),
    ],
)
def test_limits_of_a_key_are_used_instead_of_the_general_ones(
    tmp_path: Path, own: str, statuses: list[int]
) -> None:
    text = CONFIG.replace("{id: cards, ", f"{{id: cards, limits: {own}, ")
    fields = {"Authorization": f"Bearer {CARDS_ONLY_KEY}"}
    limits = "limits: {requests: 2/hour, misses: {rate: 1/hour, log_only: true}}\n"
    with serving(f"{limits}{text}{USERS}", tmp_path) as service:
        client = Client(service.port)
        replies = [client.post(CARD, b'{"card_number": "4000"}', fields) for _ in range(3)]
        assert [each.status for each in replies] == statuses
        assert [client.by_input("@alice").status for _ in range(3)] == [200, 200, 429]

"""The limits of `config.yaml` are those of the service, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.http.http_server import until
from support.processes.reloads import Gated, config, reloadable
from support.processes.service import CARDS_ONLY_KEY, CONFIG, USERS, Client, Reply, serving

CARD = "/api/v1/identify/card"


@contextmanager
def limited(folder: Path, limits: str, of_cards: str = "{}") -> Iterator[Client]:
    """A service with general limits, and with those of the key ``cards``."""
    text = CONFIG.replace("{id: cards, ", f"{{id: cards, limits: {of_cards}, ")
    with serving(f"limits: {limits}\n{text}{USERS}", folder) as service:
        yield Client(service.port)


def by_card(client: Client, number: str) -> Reply:
    """Look up a card with the key that has limits of its own."""
    body = b'{"card_number": "%s"}' % number.encode()
    return client.post(CARD, body, {"Authorization": f"Bearer {CARDS_ONLY_KEY}"})


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


def test_misses_that_are_logged_only_refuse_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with limited(tmp_path, "{misses: {rate: 3/hour, log_only: true}}") as client:
        assert [by_card(client, f"400{i}").status for i in range(9)] == [404] * 9
    messages = [record.getMessage() for record in caplog.records if "misses" in record.msg]
    assert messages == [
        "key cards exceeds its limit of misses (3/hour): without log_only its lookups would get 429"
    ]


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
    with limited(tmp_path, "{requests: 2/hour}", own) as client:
        assert [by_card(client, "4000").status for _ in range(3)] == statuses
        assert [client.by_input("@alice").status for _ in range(3)] == [200, 200, 429]

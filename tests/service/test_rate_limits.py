"""The limits of `config.yaml` are those of the service, over real connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.processes.service import CARDS_ONLY_KEY, CONFIG, FIXTURE, Client, Reply, serving

CARD = "/api/v1/identify/card"
URL = "/api/v1/identify/url"
NOT_FOUND = b'{"status":"error","code":"not_found","message":"User not found"}'


USERS = "{name: users, kind: yaml, path: users.yaml}"


@contextmanager
def limited(
    folder: Path, limits: str, of_cards: str = "{}", backend: str = USERS
) -> Iterator[Client]:
    """A service with general limits, and with those of the key ``cards``."""
    (folder / "users.yaml").write_text(FIXTURE, encoding="utf-8")
    config = CONFIG.replace("{id: cards, ", f"{{id: cards, limits: {of_cards}, ")
    with serving(f"limits: {limits}\n{config}  - {backend}\n", folder) as service:
        yield Client(service.port)


@contextmanager
def holding_upstream(count: int) -> Iterator[int]:
    """A service without users that responds when it has ``count`` requests; yields its port."""
    barrier = threading.Barrier(count, timeout=20)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            barrier.wait()
            self.send_response(404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(NOT_FOUND)))
            self.end_headers()
            self.wfile.write(NOT_FOUND)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def by_card(client: Client, number: str) -> Reply:
    """Look up a card with the key that has limits of its own."""
    body = b'{"card_number": "%s"}' % number.encode()
    return client.post(CARD, body, {"Authorization": f"Bearer {CARDS_ONLY_KEY}"})


def with_wrong_key(client: Client) -> int:
    fields = {"Authorization": "Bearer " + "B" * 40}
    return client.post(URL, b'{"input": "@alice"}', fields).status


def test_guesses_at_once_find_out_no_more_than_the_budget_of_misses(tmp_path: Path) -> None:
    """Also a user who exists is not found out beyond it."""
    count = 8
    with holding_upstream(count) as port, ThreadPoolExecutor(count) as threads:
        upstream = f"{{name: users, kind: upstream, base_url: 'http://127.0.0.1:{port}'}}"
        with limited(tmp_path, "{misses: 3/hour}", backend=upstream) as client:
            numbers = [f"{number}" for number in range(4000, 4000 + count)]
            replies = list(threads.map(partial(by_card, client), numbers))
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
        "key cards exceeds its misses (3/hour): without log_only its lookups would get 429"
    ]


@pytest.mark.parametrize(
    ("own", "statuses"),
    [
        ("{requests: 1/hour}", [404, 429, 429]),
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


def test_wrong_keys_over_the_limit_get_429_and_valid_ones_are_served(tmp_path: Path) -> None:
    with limited(tmp_path, "{failed_auth: 3/hour}") as client:
        assert [with_wrong_key(client) for _ in range(5)] == [401, 401, 401, 429, 429]
        assert client.by_input("@alice").status == 200

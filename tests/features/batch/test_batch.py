"""Many lookups in one request: each result is that of the single lookup."""

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from support.fakes.clock_and_backends import LoopClock
from support.http.http_server import until
from support.http.in_process import Harness, ask_for, harnesses, issued_keys
from support.http.live_directory import LiveDirectory
from support.http.threaded_server import serving_in_thread
from support.processes.process import eventually
from support.processes.reloads import Gated, ReloadHarness, Response, config, reloadable
from support.processes.service import (
    CARDS_ONLY_KEY,
    CONFIG,
    EXPIRED_KEY,
    KEY,
    USERS,
    Client,
    Reply,
    post_request,
    serving,
)
from tornado_idv.keys.api_key import ApiKey, Scope
from tornado_idv.keys.token import digest

BATCH = "/api/v1/identify/batch"
ITEMS = [
    {"input": "@alice"},
    {"card_number": "4000123412341234"},
    {"input": "https://profiles.example/m/alice/"},
    {"input": "@nobody"},
    {"card_number": "0000"},
    {"input": "alice"},
    {"input": 5},
    {"card_number": "12 34"},
    {"input": "@alice", "other": [1]},
]
FORWARD = "[x-request-id, traceparent]"
HALF = f"max_concurrent: 8, confirm_not_found: false, timeout: 20s, forward: {FORWARD}"
DOWN = "{name: down, kind: upstream, base_url: 'http://127.0.0.1:1', breaker: {failures: 100}}"
CANARY = "{name: users, kind: yaml, path: users.yaml, canary: {%s}}"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(CONFIG + USERS, tmp_path_factory.mktemp("batch")) as service:
        yield Client(service.port)


def batch(client: Client, items: object, key: str = KEY) -> Reply:
    body = json.dumps({"items": items}).encode()
    return client.post(BATCH, body, {"Authorization": f"Bearer {key}"})


def single(client: Client, item: dict[str, Any], key: str = KEY) -> Reply:
    path = "card" if "card_number" in item else "url"
    headers = {"Authorization": f"Bearer {key}"}
    return client.post(f"/api/v1/identify/{path}", json.dumps(item).encode(), headers)


def test_results_are_the_bytes_of_single_lookups_in_order(client: Client) -> None:
    for _ in range(2):  # past the cache, and from it
        reply = batch(client, ITEMS)
        bodies = [single(client, each).body for each in ITEMS]
        summary = b'{"found":4,"not_found":2,"invalid":3,"undetermined":0}'
        assert reply.body == (
            b'{"status":"ok","results":[%b],"summary":%b,"degraded":false}'
            % (b",".join(bodies), summary)
        )
        assert reply.status == 200
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("[", "not_json"),
        ("[]", "not_an_object"),
        ('{"items": [], "items": []}', "not_json"),
        ("{}", "member_missing"),
        ('{"items": []}', "items_number"),
        ('{"items": null}', "items_number"),
        (json.dumps({"items": [{"input": "@a"}] * 101}), "items_number"),
        ('{"items": ["@alice"]}', "item_invalid"),
        ('{"items": [{"input": "@alice"}, {}]}', "item_invalid"),
        ('{"items": [{"input": "@alice", "card_number": "1"}]}', "item_invalid"),
    ],
)
def test_invalid_batches_are_422(client: Client, body: str, reason: str) -> None:
    reply = client.post(BATCH, body.encode())
    assert (reply.status, reply.code) == (422, "invalid_format")
    assert reply.headers["x-error-reason"] == reason


def test_batch_is_refused_as_a_single_lookup(client: Client) -> None:
    for headers, status in (
        ({"Authorization": f"Bearer {EXPIRED_KEY}"}, 401),
        ({"Content-Type": "text/plain"}, 415),
        ({"Accept": "text/html"}, 406),
    ):
        assert client.post(BATCH, b'{"items": [{"input": "@alice"}]}', headers).status == status
    for method in ("GET", "DELETE"):
        reply = client.send(method, BATCH, {"Host": "x"})
        assert (reply.status, reply.headers["allow"]) == (405, "POST")


def test_only_what_is_not_known_is_undetermined(tmp_path: Path) -> None:
    """Users of the first backend are found, and for 10 minutes that another failed is reported."""
    with serving(f"{CONFIG}{USERS}  - {DOWN}\n", tmp_path) as service:
        client = Client(service.port)
        before = json.loads(batch(client, [{"input": "@alice"}]).body)
        record = json.loads(batch(client, [{"input": "@alice"}, {"input": "@bob"}] * 50).body)
        after = [json.loads(batch(client, [{"input": "@alice"}]).body)]
        for ago in (590, 610):
            service.counters.backends["down"].last_error_at = time.time() - ago
            after.append(json.loads(batch(client, [{"input": "@alice"}]).body))
    assert [each["status"] for each in record["results"]] == ["ok", "error"] * 50
    assert {each.get("code") for each in record["results"]} == {None, "backend_unavailable"}
    assert record["summary"] == {"found": 50, "not_found": 0, "invalid": 0, "undetermined": 50}
    degraded = [each["degraded"] for each in (before, record, *after)]
    assert degraded == [False, True, True, True, False]


def test_nothing_is_not_found_while_a_canary_is_missing(tmp_path: Path) -> None:
    users = CANARY % "nickname: '@canary'"
    with serving(f"{CONFIG}  - {users}\n", tmp_path) as service:
        client = Client(service.port)
        records = [json.loads(batch(client, ITEMS).body) for _ in range(2)]
    for record in records:
        codes = [each.get("code") for each in record["results"]]
        assert codes[:5] == [None, None, None, "backend_unavailable", "not_found"]  # no card of it


@pytest.mark.parametrize(
    ("backends", "fails"),
    [
        ([CANARY % "nickname: '@canary', card_number: '4000123412341234'"], False),
        ([CANARY % "nickname: '@alice', card_number: '49'"], False),
        ([DOWN.replace("}}", "}, on_unavailable: continue}"), USERS[4:]], True),
    ],
    ids=["nickname of the canary", "card of the canary", "first of two backends"],
)
def test_found_users_do_not_hide_that_others_may_be_missing(
    tmp_path: Path, backends: list[str], *, fails: bool
) -> None:
    """Without a lookup that ends by "not found", and by this cause alone."""
    lines = [f"  - {each}\n" for each in backends]
    with serving("".join([CONFIG, *lines]), tmp_path) as service:
        client = Client(service.port)
        eventually(lambda: json.loads(batch(client, ITEMS[:2]).body)["degraded"])
        failed = [each.last_error_at > 0 for each in service.counters.backends.values()]
    assert any(failed) is fails


ALICE, CARD = b'{"input": "@alice"}', b'{"card_number": "4000123412341234"}'
ABSENT, INVALID = b'{"input": "@x"}', b'{"input": "no one"}'


@pytest.fixture
def make() -> Iterator[Callable[..., Harness]]:
    with harnesses() as factory:
        yield factory


def request(*items: bytes, key: str = KEY) -> bytes:
    """A batch; all have the same head, but for its length and key."""
    return request_of(b'{"items": [%b]}' % b", ".join(items), key=key)


def request_of(body: bytes, *fields: bytes, key: str = KEY) -> bytes:
    head = ask_for("", key=key).partition(b"Content-Length")[0].replace(b"/url", b"/batch")
    lines = [b"Content-Length: %d" % len(body), *fields, b"", body]
    return head + b"\r\n".join(lines)


def test_limits_count_items(make: Callable[..., Harness]) -> None:
    """A batch that a limit cannot hold whole is refused, and costs nothing."""
    harness = make(fast_path=False, requests="10/hour")
    items = [ALICE, ALICE, INVALID, ABSENT]
    sizes = [request(b'{"input": 1}', INVALID), *(request(*items[:n]) for n in (4, 3, 4))]
    client = harness.ask(*sizes, request_of(b"{}"), request(ALICE), request(*[ALICE] * 11))
    assert client.statuses == [200, 200, 200, 429, 422, 429, 429]
    assert client.socket.sent.count(b'RateLimit-Policy: "requests";q=10;w=3600\r\n') == 3


def test_misses_count_items_and_equal_ones_too(make: Callable[..., Harness]) -> None:
    """Items may be misses, and count only if they are."""
    batches = [[ALICE] * 6, [ALICE] * 7, [ABSENT] * 3, [ALICE] * 4, [ABSENT, ABSENT, INVALID]]
    client = make(fast_path=False, misses="6/hour").ask(*(request(*each) for each in batches))
    assert client.send(ask_for("alice")).statuses == [200, 429, 200, 429, 200, 429]


@pytest.mark.parametrize(
    ("body", "fields", "status"),
    [
        (b"{}", [], 429),
        (b'{"items": [{"input": "@nobody"}]}', [], 429),  # from the cache, but for the first
        (b"{}", [b"Content-Type: text/plain"], 200),
    ],
)
def test_batch_that_finds_no_user_is_a_miss(
    make: Callable[..., Harness], body: bytes, fields: list[bytes], status: int
) -> None:
    client = make(misses="3/hour").ask(*[request_of(body, *fields)] * 3, ask_for("alice"))
    assert client.statuses[-1] == status


class Counting(LiveDirectory):
    """A service without users that responds to four requests at a time.

    ``numbers`` are the requests that were waiting when each arrived, and ``ids`` those of all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.barrier, self.lock = threading.Barrier(4, timeout=20), threading.Lock()
        self.waiting = 0
        self.numbers: list[int] = []
        self.ids: set[str] = set()

    def respond(self, text: str, fields: Message) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.waiting += 1
            self.numbers.append(self.waiting)
            self.ids.add(f"{fields['X-Request-ID']} {fields['traceparent'][3:35]}")
        self.barrier.wait()
        with self.lock:
            self.waiting -= 1
        return super().respond(text, fields)


def test_equal_items_are_looked_up_once_and_batches_take_half_of_a_backend(tmp_path: Path) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    with serving_in_thread(Counting()) as up:
        backend = f"{{name: up, kind: upstream, base_url: '{up.url}', {HALF}}}"
        with serving(f"{CONFIG}  - {backend}\n", tmp_path) as service:
            items = [{"input": f"@u{i % 40}"} for i in range(100)]
            headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
            body = json.dumps({"items": items}).encode()
            reply = Client(service.port).post(BATCH, body, headers)
            record = json.loads(reply.body)
    assert record["summary"]["not_found"] == 100
    assert (len(up.numbers), max(up.numbers)) == (40, 4)
    assert up.ids == {f"{reply.headers['x-request-id']} {trace_id}"}


async def ask(harness: ReloadHarness, *names: str) -> Response:
    async with harness.connected() as client:
        items = [{"input": each} for each in names]
        client.writer.write(post_request(BATCH, {"items": items}))
        return await client.read()


async def test_batches_at_one_time_find_no_more_than_the_limit_of_misses(tmp_path: Path) -> None:
    async with reloadable(tmp_path, config(more="limits: {misses: 3/hour}")) as harness:
        (users,) = Gated.made
        users.gate.clear()
        asking = [asyncio.create_task(ask(harness, *each)) for each in (("@A", "@B"), ("@C", "@D"))]
        await until(lambda: users.asked == 4)
        users.gate.set()
        assert sorted(each.status for each in await asyncio.gather(*asking)) == [200, 429]


async def test_time_of_a_request_bounds_waiting_and_lookups_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And a lookup that fails after it is no error of the service."""
    users = "{name: users, kind: gated, max_concurrent: 2, timeout: 60s}"
    async with reloadable(tmp_path, config(users, server="request_timeout: 5s")) as harness:
        clock, (backend,) = LoopClock(), Gated.made
        clock.stop()
        backend.gate.clear()
        asking = asyncio.create_task(ask(harness, "@a", "@b"))
        await backend.begun.wait()
        backend.begun.clear()
        await clock.advance(4)
        backend.gate.set()
        backend.gate.clear()
        await backend.begun.wait()  # @b has waited for the slot of @a
        await clock.advance(1.5)
        results = (await asking).record["results"]
        assert [each.get("code") for each in results] == [None, "backend_unavailable"]
        backend.down = True
        backend.gate.set()
        await until(lambda: not harness.service.directories.current.guards[0].in_flight)
        gc.collect()
    assert "never retrieved" not in caplog.text


async def test_backend_for_one_lookup_at_a_time_serves_batches(tmp_path: Path) -> None:
    users = "{name: users, kind: gated, max_concurrent: 1}"
    async with reloadable(tmp_path, config(users)) as harness:
        assert (await ask(harness, "@a", "@b")).record["summary"]["found"] == 2


async def test_batch_whose_lookups_cannot_begin_in_time_is_undetermined(tmp_path: Path) -> None:
    async with reloadable(tmp_path, config(server="request_timeout: 100ms")) as harness:
        while harness.service.directories.current.batch_slots.try_acquire():
            pass
        assert (await ask(harness, "@a", "@b")).record["summary"]["undetermined"] == 2


@pytest.mark.parametrize(
    ("data", "handled"),
    [
        (request(ALICE), 0),
        (request(ALICE, CARD, ABSENT, ALICE), 0),
        (request(*[ALICE] * 40), 0),
        (request(*[ALICE] * 60), 1),
        (request(ALICE, b'{"input": "@y"}'), 1),
        (request(ALICE, INVALID), 1),
        (request(ALICE, b"{}"), 1),
        (request(), 1),
        (request(ALICE, key=CARDS_ONLY_KEY), 1),
        (request(CARD, key=CARDS_ONLY_KEY), 1),
        (request(ALICE, key="B" * 40), 1),
    ],
)
def test_fast_path_answers_cached_batches_as_the_handlers_do(
    make: Callable[..., Harness], data: bytes, handled: int
) -> None:
    seen = []
    for fast_path in (True, False):
        observed: list[tuple[str, bool]] = []
        harness = make(fast_path=fast_path)
        hear = lambda query, cached, observed=observed, **_: observed.append((query.text, cached))  # noqa: E731
        harness.directory.observe([hear], [hear])
        client = harness.ask(*[request(ALICE, CARD, ABSENT)] * 3)
        assert +harness.counters.cache_lookups == {"miss": 3, "hit": 6}
        before = harness.app.asked
        client.send(data)
        if fast_path:
            assert harness.app.asked == before + handled
        seen.append((client.steady, harness.access(), observed, harness.counters.cache_lookups))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(("scope", "item"), [("identify:url", CARD), ("identify:card", ALICE)])
def test_key_without_the_scope_of_an_item_gets_no_answer_on_the_fast_path(
    make: Callable[..., Harness], scope: Scope, item: bytes
) -> None:
    """Though another key has had the answer to the same bytes."""
    harness = make()
    token = "B" * 40
    keys = [*issued_keys(), ApiKey("other", digest(token), scopes=frozenset({scope}))]
    harness.keys.replace(harness.keys.merged(keys, []))
    client = harness.ask(*[request(item)] * 4, request(item, key=token))
    assert [b"insufficient_scope" in body for _, body in client.answers] == [False] * 4 + [True]
    summary = b'"summary":{"found":0,"not_found":0,"invalid":0,"undetermined":1}'
    assert summary in client.answers[-1][1]


@pytest.mark.parametrize("limits", [{"requests": "14/hour"}, {"misses": "6/hour"}])
def test_fast_path_charges_the_items_of_a_batch(
    make: Callable[..., Harness], limits: dict[str, str]
) -> None:
    statuses = [
        make(fast_path=each, **limits).ask(*[request(ALICE, ABSENT)] * 9).statuses
        for each in (True, False)
    ]
    assert statuses[0] == statuses[1]
    assert 3 < statuses[0].count(200) < 9


def test_batch_over_a_limit_refreshes_no_entry(make: Callable[..., Harness]) -> None:
    harness = make(requests="6/hour")
    assert harness.ask(*[request(ALICE, ABSENT)] * 3).statuses == [200] * 3
    harness.loop.forward(250)  # alice's entry is due for a refresh
    before = harness.users.asked
    assert harness.ask(request(ALICE)).statuses == [429]
    assert harness.users.asked == before

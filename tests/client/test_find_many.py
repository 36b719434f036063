"""Many lookups by the client: a user, nothing for one that does not exist, or an error."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from support.http.clients import ALICE, ECHO, KINDS, NOT_FOUND, UNAVAILABLE, Kind, error, found
from support.http.scripted_server import Said, http, serving
from support.processes.service import CARDS_ONLY_KEY, CONFIG, FIXTURE, KEY
from support.processes.service import serving as serving_config
from tornado_idv.client import (
    AsyncClient,
    Client,
    ClientError,
    InvalidFormat,
    InvalidKey,
    MissingScope,
    RateLimited,
    Result,
    Undetermined,
    Unexpected,
)
from tornado_idv.service.service import Service as RunningService

pytestmark = pytest.mark.parametrize("kind", KINDS)
GONE = {"status": "error", "code": "not_found", "message": "User not found"}
USER = json.loads(found().partition(b"\r\n\r\n")[2])


async def find_many(
    kind: Kind,
    url: str,
    identifiers: Iterable[str],
    key: str = KEY,
    *,
    cards: bool = False,
    **options: Any,
) -> list[Result]:
    method = "find_many_cards" if cards else "find_many"
    if kind == "synchronous":
        with Client(url, key, deadline=10.0, **options) as client:
            return await asyncio.to_thread(lambda: list(getattr(client, method)(identifiers)))
    async with AsyncClient(url, key, deadline=10.0, **options) as asynchronous:
        return [each async for each in getattr(asynchronous, method)(identifiers)]


def kinds(results: list[Result]) -> list[type[ClientError] | str]:
    return [
        type(each.error) if each.error else "found" if each.user else "gone" for each in results
    ]


def batch(*records: object, degraded: object = False) -> bytes:
    record = {"status": "ok", "results": records, "summary": {}, "degraded": degraded}
    return http(200, json.dumps(record).encode(), ECHO)


async def test_any_number_of_identifiers_in_order(kind: Kind, service: RunningService) -> None:
    identifiers = [f"@u{number}" for number in range(230)]
    identifiers[99] = identifiers[100] = identifiers[229] = "@alice"
    identifiers[7] = "https://profiles.example/m/alice"
    identifiers[8] = "bad"
    results = await find_many(kind, service.url, (each for each in identifiers))
    cards = await find_many(kind, service.url, ["4000123412341234", "00"], cards=True)
    assert [each.identifier for each in results] == identifiers
    found_at = [place for place, each in enumerate(results) if each.user == ALICE]
    assert found_at == [7, 99, 100, 229]
    assert kinds(results)[8] is InvalidFormat
    assert kinds(results).count("gone") == 225
    assert kinds(cards) == ["found", "gone"]
    assert "alice" not in repr(results)


async def test_key_without_the_scope(kind: Kind, service: RunningService) -> None:
    results = await find_many(kind, service.url, ["@alice", "@bob"], CARDS_ONLY_KEY)
    others = await find_many(kind, service.url, ["@alice"], "unknown")
    assert kinds(results) == [MissingScope, MissingScope]
    assert kinds(others) == [InvalidKey]
    assert all(each.error and each.error.request_id for each in [*results, *others])


async def test_long_identifiers_fit_into_requests(kind: Kind) -> None:
    async with serving(gone(2), gone(2), gone(1)) as server:
        results = await find_many(kind, server.address, ["é" * 1000] * 5)
    assert kinds(results) == ["gone"] * 5
    assert max(map(len, server.requests)) < 16 * 1024


async def test_older_service_gets_single_lookups(kind: Kind) -> None:
    answers = [error(404, "no_such_route"), found(), NOT_FOUND, NOT_FOUND]
    async with serving(*map(Said, answers)) as server:
        results = await find_many(kind, server.address, ["@alice", "@bob", "@carol"])
    assert kinds(results) == ["found", "gone", "gone"]
    assert [each.rpartition("/")[2] for each in server.targets] == ["batch", "url", "url", "url"]
    assert [each.degraded for each in results] == [None] * 3


@pytest.mark.parametrize(
    "invalid",
    ["a" * 15_100, "a" * 20_000, "\ud800"],
    ids=["longer than a request", "longer than the service reads", "no text"],
)
async def test_invalid_identifier_spoils_no_other(
    kind: Kind, service: RunningService, invalid: str
) -> None:
    """The others are looked up in batches, which say whether the service is degraded."""
    results = await find_many(kind, service.url, ["@alice", invalid, "@bob", "@alice"])
    assert kinds(results) == ["found", InvalidFormat, "gone", "found"]
    assert [each.degraded for each in results if not each.error] == [False] * 3


@pytest.mark.parametrize(
    ("more", "server"), [("limits: {requests: 40/second}\n", ""), ("", "max_body: 1KiB, ")]
)
async def test_limit_of_the_service_below_a_batch_makes_it_smaller(
    kind: Kind, tmp_path: Path, more: str, server: str
) -> None:
    (tmp_path / "users.yaml").write_text(FIXTURE, encoding="utf-8")
    config = f"{more}{CONFIG}  - {{name: u, kind: yaml, path: users.yaml}}\n"
    config = config.replace("server: {", f"server: {{{server}")
    with serving_config(config, tmp_path) as service:
        results = await find_many(kind, service.url, ["@alice"] * 60)
    assert kinds(results) == ["found"] * 60
    assert {each.degraded for each in results} == {False}


@pytest.mark.parametrize(
    ("answer", "kinds_of_results"),
    [
        (batch(USER, GONE), ["found", "gone"]),
        (batch(GONE, USER), ["gone", Unexpected]),  # another user than asked for
        (batch(USER, GONE, GONE), [Unexpected, Unexpected]),
        (batch(USER, {**GONE, "code": "backend_unavailable"}), ["found", Undetermined]),
        (batch(USER, {**GONE, "status": "ok"}), ["found", Unexpected]),
        (batch(USER, {"code": "not_found"}), ["found", Unexpected]),
        (batch(USER, None), ["found", Unexpected]),
        (found(), [Unexpected, Unexpected]),
        (NOT_FOUND, [Unexpected, Unexpected]),  # of a single lookup
        (error(401, "token_invalid_or_expired"), [InvalidKey, InvalidKey]),
        (error(500, "internal"), [Undetermined, Undetermined]),
        (batch(USER, GONE)[:-20], [Unexpected, Unexpected]),
    ],
)
async def test_gone_is_said_by_a_whole_response_alone(
    kind: Kind, answer: bytes, kinds_of_results: list[Any]
) -> None:
    async with serving(Said(answer, "close")) as server:
        assert kinds(await find_many(kind, server.address, ["@alice", "@bob"])) == kinds_of_results


@pytest.mark.parametrize(("value", "degraded"), [(False, False), (True, True), (None, True)])
async def test_degraded_is_on_each_result(kind: Kind, value: object, degraded: bool) -> None:  # noqa: FBT001
    async with serving(Said(batch(USER, GONE, degraded=value))) as server:
        results = await find_many(kind, server.address, ["@alice", "@bob"])
    assert [each.degraded for each in results] == [degraded, degraded]


LIMITED = "rate_limited", 'RateLimit-Policy: "requests";q=2;w=60', "Retry-After: 3"
A_DAY = "Retry-After: Fri, 27 Nov 2026 12:00:00 GMT"


def gone(number: int) -> bytes:
    return batch(*[GONE] * number)


@pytest.mark.parametrize(
    ("answers", "sizes", "pauses", "result"),
    [
        ([UNAVAILABLE] * 5 + [gone(1)], [1] * 6, [1.0, 1.0, 1.0, 1.0, 1.6], "gone"),
        ([error(503, "busy", A_DAY)] * 2 + [gone(1)], [1, 1, 1], [0.1, 0.2], "gone"),
        ([http(429, b"slow down"), gone(1)], [1, 1], [0.1], "gone"),
        ([error(429, "rate_limited", "Retry-After: 3600")], [2], [], RateLimited),
        ([error(429, *LIMITED), gone(2)], [2, 2], [3.0], "gone"),
        ([error(429, *LIMITED), gone(2), gone(1)], [3, 2, 1], [], "gone"),
        ([error(429, "another", *LIMITED[1:]), gone(3)], [3, 3], [3.0], "gone"),
        ([http(413), gone(2), gone(2), gone(1)], [5, 2, 2, 1], [], "gone"),
        ([http(413)], [1], [], InvalidFormat),
        ([batch({**USER, "profile_url": "x" * 70_000})], [1], [], "found"),
        ([error(422, "invalid_format"), gone(1), gone(1)], [2, 1, 1], [], "gone"),
        ([error(403, "insufficient_scope")], [2], [], MissingScope),
    ],
)
async def test_number_size_and_times_of_requests(
    kind: Kind, answers: list[bytes], sizes: list[int], pauses: list[float], result: object
) -> None:
    """A batch that is refused as too large is sent in parts at once, any other one later."""
    waited: list[float] = []
    now = 0.0

    def sleep(seconds: float) -> Any:
        nonlocal now
        waited.append(seconds)
        now += seconds
        return asyncio.sleep(0) if kind == "asynchronous" else None

    options = {"clock": lambda: now, "sleep": sleep, "chance": lambda: 0.0}
    async with serving(*answers) as server:
        found = await find_many(kind, server.address, ["@alice"] * sizes[0], **options)
    assert kinds(found) == [result] * sizes[0]
    assert [each.count(b'"input"') for each in server.requests] == sizes
    assert waited == pauses


async def test_batches_stay_as_small_as_the_service_accepts(kind: Kind) -> None:
    async with serving(http(413), gone(50)) as server:
        await find_many(kind, server.address, ["@bob"] * 250)
    assert [each.count(b'"input"') for each in server.requests] == [100, 50, 50, 50, 50, 50]

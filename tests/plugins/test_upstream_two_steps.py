"""Lookups in two steps: an id of the first response is in the second request."""

import json
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from support.databases.upstream_backends import ALICE, PLAIN, RECORD, upstream
from support.fakes.outcomes import outcome
from support.http.scripted_server import Said, Scripted, http
from tornado_idv import BackendResult, ByCard, LookupFailed, Step
from tornado_idv.interfaces.backend import AnyBackend

OPTIONS: dict[str, Any] = {
    "by_card": {"url": "/cards/{card_number}", "then": {"url": "/users/{id}"}},
    "response": {**PLAIN, "id": "to_string(owner)", "not_known_when": "error == 'unknown'"},
}
QUERY = ByCard("0012")


def json_of(record: object, status: int = 200, *headers: str) -> bytes:
    return http(status, json.dumps(record).encode(), *headers)


CARD = json_of({"owner": 7})
USER = json_of(RECORD)
BOB = json_of({"plan": "a", "card": "9", "login": "bob"})
UNKNOWN = json_of({"error": "unknown"}, 404)


def behind(
    *answers: bytes | Said, **options: Any
) -> AbstractAsyncContextManager[tuple[Scripted, AnyBackend]]:
    return upstream(*answers, **{**OPTIONS, **options})


@pytest.mark.parametrize(
    ("answers", "expected", "targets"),
    [
        ([CARD, USER], "found", ["/cards/0012", "/users/7"]),
        ([json_of({"owner": "null"}), USER], "found", ["/cards/0012", "/users/null"]),
        ([UNKNOWN], "not found", ["/cards/0012"]),
        ([json_of({"owner": 7, "error": "unknown"})], "not found", ["/cards/0012"]),
        (
            [CARD, UNKNOWN, json_of({"owner": 8}), USER],
            "found",
            ["/cards/0012", "/users/7", "/cards/0012", "/users/8"],
        ),
        ([CARD, UNKNOWN, UNKNOWN], "not found", ["/cards/0012", "/users/7", "/cards/0012"]),
        (
            [CARD, UNKNOWN, CARD, UNKNOWN],
            "unavailable: the first response has an id, but the second has no user with this id",
            ["/cards/0012", "/users/7", "/cards/0012", "/users/7"],
        ),
        ([CARD, json_of({"error": "gone"}, 404)], "broken: not_known_when is false for", 2),
        ([json_of({"owner": ".."})], "broken: the query cannot be part of a path", 1),
        ([json_of({"owner": ""})], "broken: the query cannot be sent", 1),
        (
            [CARD, BOB, CARD, BOB],
            "broken: response is for",
            4,  # the first time, on a kept connection, it may be a response to another request
        ),
        ([CARD, json_of({}, 500)], "unavailable: temporarily unavailable (status 500)", 2),
        ([CARD, Said(b"", "reset")], "unavailable: ", 3),
    ],
)
async def test_lookup_in_two_steps(
    answers: list[bytes | Said], expected: str, targets: list[str] | int
) -> None:
    async with behind(*answers) as (server, backend):
        assert (await outcome(backend, QUERY)).startswith(expected)
    assert targets in (server.targets, len(server.targets))


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("owner", {"error": "moved"}),
        ("owner", {"owner": None}),
        ("to_string(owner)", {}),
        ("to_string(owner)", {"owner": None}),
    ],
)
async def test_missing_id_is_never_not_found(path: str, first: dict[str, Any]) -> None:
    response = {**OPTIONS["response"], "id": path}
    async with behind(json_of(first), UNKNOWN, response=response) as (server, backend):
        result = await outcome(backend, QUERY)
    assert result == f"broken: a wrong record: id ({path}) is missing"
    assert server.targets == ["/cards/0012"]


async def test_steps_of_both_requests_are_explained() -> None:
    """Again, if the second response has no user; up to the one that failed."""
    steps: list[Step] = []
    async with behind(CARD, UNKNOWN, CARD, Said(b"", "reset")) as (server, backend):
        before = dict(vars(backend))
        with pytest.raises(LookupFailed):
            await backend.explain(QUERY, steps)
        assert vars(backend) == before
    assert [each.result for each in steps if each.name in {"request", "id"}] == [
        f"GET {server.address}/cards/0012",
        "7",
        f"GET {server.address}/users/7",
    ] * 2
    assert [each.result for each in steps if each.name == "not_known_when"].count(True) == 1
    assert [each.name for each in steps].count("response") == 3
    assert len(server.connections) == 1 + 3  # the last request is repeated
    mapping = {**OPTIONS["response"], "select": "not_null(items, @)", "match": "echo"}
    for others, shown in (([], 4096), ([{"login": "b", "card": "9"}], 400)):
        second = json_of({"items": [RECORD, *others]})
        async with behind(CARD, second, response=mapping) as (_, backend):
            await backend.explain(QUERY, steps := [])
        assert [each.shown for each in steps if each.name == "response body"] == [400, shown]


@pytest.mark.parametrize(
    ("first", "second", "ttl", "storable"),
    [
        (("Cache-Control: max-age=5",), ("Cache-Control: max-age=9",), 5.0, True),
        ((), ("Cache-Control: no-store",), None, False),
        (("Cache-Control: no-store",), ("Cache-Control: max-age=9",), 9.0, False),
        (("Cache-Control: max-age=9",), ("Cache-Control: no-store, max-age=5",), 5.0, False),
    ],
)
async def test_user_is_cached_as_long_as_both_responses_allow(
    first: tuple[str, ...], second: tuple[str, ...], ttl: float | None, *, storable: bool
) -> None:
    answers = json_of({"owner": 7}, 200, *first), json_of(RECORD, 200, *second)
    async with behind(*answers) as (_, backend):
        assert await backend.find(QUERY) == BackendResult(ALICE, ttl=ttl, storable=storable)


async def test_message_and_cache_control_of_the_first_response_count_where_it_is_the_last() -> None:
    unknown = json_of({"error": "unknown"}, 404, "Cache-Control: max-age=1")
    mapping = {**OPTIONS["response"], "error": "error"}
    async with behind(unknown, response=mapping) as (server, backend):
        assert await backend.find(QUERY) == BackendResult(None, ttl=1.0, storable=True)
        stray = json_of({"error": "unknown"}, 404, "Cache-Control: no-store")
        server.say(stray, unknown)  # the second confirms the first, and counts alone
        assert await backend.find(QUERY) == BackendResult(None, ttl=1.0, storable=True)
        server.say(json_of({"error": "maintenance"}, 503))
        assert "maintenance" in await outcome(backend, QUERY)

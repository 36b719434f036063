"""What is refused before a handler could see it leaves its line, too."""

import json
from collections.abc import Callable

import pytest

from support.http.in_process import Harness, ask_for
from support.processes.service import CARDS_ONLY_KEY, EXPIRED_KEY
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.web.errors import ApiError


@pytest.fixture
def harness(make_harness: Callable[..., Harness]) -> Harness:
    return make_harness(limits=HttpLimits(max_connections=2, idle_timeout=10.0))


def lines(harness: Harness) -> list[dict[str, object]]:
    harness.access()
    return [json.loads(line) for line in "".join(harness.logged).splitlines()]


def test_rejected_request_is_logged(harness: Harness) -> None:
    client = harness.call("192.0.2.7").send(ask_for("alice", b"X: " + b"y" * 20_000))
    assert client.statuses == [431]
    (line,) = lines(harness)
    assert f"X-Request-ID: {line.pop('request_id')}\r\n".encode() in client.socket.sent
    line.pop("timestamp")
    assert line == {
        "event": "request",
        "level": "info",
        "logger": "tornado_idv.access",
        "method": "-",
        "route": "-",
        "status": 431,
        "ms": 0.0,
        "client": "192.0.2.7",
        "key": None,
        "code": "headers_too_large",
    }


def cache_fields(harness: Harness) -> list[tuple[object, ...]]:
    names = ("status", "cache", "backend")
    return [tuple(line.get(name) for name in names) for line in lines(harness)]


def test_line_says_how_the_cache_was_used(harness: Harness) -> None:
    """The third request is one for the fast path."""
    client = harness.call()
    for name in ("alice", "unknown"):
        for _ in range(3):
            client.send(ask_for(name))
    assert harness.app.asked == 2
    assert cache_fields(harness) == [
        (200, "miss", "users"),
        (200, "hit", "users"),
        (200, "hit", "users"),
        (404, "miss", None),
        (404, "hit", None),
        (404, "hit", None),
    ]


LOGGED = {
    "found": (ask_for("alice"), {"status": 200, "key": "caller", "backend": "users"}),
    "not found": (ask_for("nobody"), {"status": 404, "key": "caller", "code": "not_found"}),
    "a wrong nickname": (
        ask_for("a b"),
        {"status": 422, "key": "caller", "code": "invalid_format", "reason": "nickname_invalid"},
    ),
    "no route": (
        ask_for("alice").replace(b"identify", b"elsewhere"),
        {"status": 404, "key": None, "code": "no_such_route"},
    ),
    "without the scope": (
        ask_for("alice", key=CARDS_ONLY_KEY),
        {"status": 403, "key": "cards", "code": "insufficient_scope"},
    ),
    **{
        f"{reason} key": (
            ask_for("alice", key=key),
            {"status": 401, "key": key_id, "code": ApiError.TOKEN.code, "reason": reason},
        )
        for key, key_id, reason in (
            (EXPIRED_KEY, "expired", "expired"),
            ("B" * 40, None, "unknown"),
            ("\xe4", None, "malformed"),
        )
    },
}


@pytest.mark.parametrize(("data", "expected"), LOGGED.values(), ids=LOGGED)
def test_line_names_the_key_and_the_cause(
    harness: Harness, data: bytes, expected: dict[str, object]
) -> None:
    """The third request skips the handlers where it can."""
    harness.ask(data, data, data)
    names = ("status", "key", "backend", "code", "reason", "subject")
    for line in lines(harness):
        assert {name: line[name] for name in names if name in line} == expected
        assert ("cache" in line) == (expected["status"] in (200, 404) and line["route"] != "none")


def test_line_says_that_a_lookup_was_shared(harness: Harness) -> None:
    clients = [harness.call(), harness.call()]
    for client in clients:
        client.socket.arrive(ask_for("alice"))
    harness.loop.settle()
    assert cache_fields(harness) == [(200, "miss", "users"), (200, "coalesced", "users")]


def test_line_says_that_an_answer_was_stale(harness: Harness) -> None:
    client = harness.call()
    client.send(ask_for("alice"))
    harness.users.down = True
    harness.loop.now += 301
    client.send(ask_for("alice"), ask_for("bob"))
    assert cache_fields(harness)[1:] == [(200, "stale", "users"), (503, "miss", "users")]
    failed = lines(harness)[-1]
    assert (failed["code"], failed["reason"]) == ("backend_unavailable", "down")
    assert b"\r\nRetry-After: 1\r\n" in client.socket.sent


def test_timed_out_and_excess_connections_are_logged(harness: Harness) -> None:
    """But no silent one that is closed."""
    harness.ask(ask_for("alice")[:20])
    harness.call()
    harness.call()
    harness.loop.forward(10.2)
    assert [(line["status"], line["code"]) for line in lines(harness)] == [
        (503, "overloaded"),
        (408, "request_timeout"),
    ]

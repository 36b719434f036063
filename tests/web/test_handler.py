"""What the handlers send, log and leave behind."""

from __future__ import annotations

import gc
import json

import pytest

from support.http.in_process import Harness, ask_for, harnesses
from support.processes.service import CARDS_ONLY_KEY, EXPIRED_KEY

REQUESTS = {
    200: ask_for("alice"),
    401: ask_for("alice", key="guessed"),
    403: ask_for("alice", key=CARDS_ONLY_KEY),
    404: ask_for("nobody"),
    405: ask_for("alice").replace(b"POST", b"PUT", 1),
    422: ask_for("a b"),
}


@pytest.mark.parametrize("status", REQUESTS)
def test_request_leaves_nothing_to_the_garbage_collector(status: int) -> None:
    """A collection takes milliseconds, in which no other request is served."""
    with harnesses() as make:
        client = make(fast_path=False).ask(REQUESTS[status])
        gc.collect()
        gc.disable()
        try:
            client.send(REQUESTS[status])
            assert gc.collect() == 0
        finally:
            gc.enable()
        assert client.statuses == [status] * 2


def test_fields_of_a_response_are_spelled_and_ordered_as_always() -> None:
    """Tornado's `HTTPHeaders` would spell some of them in another way."""
    with harnesses() as make:
        harness = make(fast_path=False, requests="1/hour")
        harness.ask(ask_for("alice"))
        sent = bytes(harness.ask(ask_for("alice", version="1.0")).socket.sent)
    names = [line.partition(b":")[0].decode() for line in sent.split(b"\r\n")[1:-2]]
    assert names == [
        *("Content-Type", "Date", "Cache-Control", "X-Content-Type-Options", "X-Request-ID"),
        *("Retry-After", "RateLimit-Policy", "RateLimit", "Connection", "Content-Length"),
    ]


def test_limit_comes_before_the_media_type_and_counts_invalid_bodies() -> None:
    with harnesses() as make:
        harness = make(fast_path=False, misses="2/hour")
        invalid = ask_for("a b")
        other_type = ask_for("alice", b"Content-Type: text/plain")
        client = harness.ask(other_type, invalid, invalid, other_type)
        assert client.statuses == [415, 422, 422, 429]


def logged(harness: Harness) -> list[dict[str, object]]:
    """The records of the access log."""
    harness.access()  # writes them
    return [json.loads(line) for line in "".join(harness.logged).splitlines()]


def test_access_line_of_a_rejected_key_names_it() -> None:
    with harnesses() as make:
        harness = make(fast_path=False, failed_auth="1/hour")
        harness.ask(ask_for("alice", key=EXPIRED_KEY), ask_for("alice", key=EXPIRED_KEY))
        first, second = logged(harness)
    assert (first["status"], first["key"], first["reason"]) == (401, "expired", "expired")
    assert (second["status"], second["key"], second["reason"]) == (429, "expired", "failed_auth")


def test_access_line_of_a_failed_lookup_says_that_it_was_not_cached() -> None:
    with harnesses() as make:
        harness = make(fast_path=False)
        harness.users.down = True
        harness.ask(ask_for("alice"))
        (line,) = logged(harness)
    assert (line["status"], line["cache"], line["backend"]) == (503, "miss", "users")


def test_access_line_of_an_invalid_body_says_why() -> None:
    with harnesses() as make:
        harness = make(fast_path=False)
        harness.ask(ask_for("a b"), ask_for("alice", b"Content-Encoding: gzip"))
        lines = logged(harness)
    assert [(line["code"], line["reason"]) for line in lines] == [
        ("invalid_format", "nickname_invalid"),
        ("unsupported_media_type", "content_encoding"),
    ]

"""Responses as bytes, and what the handlers send and leave behind."""

import gc
import re
import time
from collections.abc import Callable

import pytest

from support.http.in_process import Harness, ask_for
from support.processes.service import CARDS_ONLY_KEY
from tornado_idv.web.response import build_response, valid_request_id

REQUESTS = {
    200: ask_for("alice"),
    401: ask_for("alice", key="guessed"),
    403: ask_for("alice", key=CARDS_ONLY_KEY),
    404: ask_for("nobody"),
    405: ask_for("alice").replace(b"POST", b"PUT", 1),
    422: ask_for("a b"),
}
DATE = r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"


def test_a_response_is_a_status_line_header_fields_and_a_body() -> None:
    data = build_response(200, "some-id", b"{}", "X-A: b\r\n").decode()
    assert re.fullmatch(
        "HTTP/1.1 200 OK\r\n"
        "Content-Type: application/json\r\n"
        f"Date: {DATE}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "X-Request-ID: some-id\r\n"
        "X-A: b\r\n"
        "Content-Length: 2\r\n\r\n{}",
        data,
    )


def test_only_a_harmless_request_id_is_kept() -> None:
    kept, rejected = ("a", "A-1._", "x" * 64), ("", "x" * 65, "a b", "\xe9", '"')
    assert [each for each in (*kept, *rejected) if valid_request_id(each) == each] == [*kept]


def test_the_date_follows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for now, second in ((784111777.9, 37), (784111778.0, 38)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        date = b"\r\nDate: Sun, 06 Nov 1994 08:49:%d GMT\r\n" % second
        assert date in build_response(200, "x", b"")


@pytest.mark.parametrize("status", REQUESTS)
def test_request_leaves_nothing_to_the_garbage_collector(
    make_harness: Callable[..., Harness], status: int
) -> None:
    """A collection takes milliseconds, in which no other request is served."""
    client = make_harness(fast_path=False).ask(REQUESTS[status])
    gc.freeze()  # what is garbage by now does not count
    gc.disable()
    try:
        client.send(REQUESTS[status])
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert client.statuses == [status] * 2


def test_fields_of_a_response_are_spelled_and_ordered_as_always(
    make_harness: Callable[..., Harness],
) -> None:
    """Tornado's `HTTPHeaders` would spell some of them in another way."""
    harness = make_harness(fast_path=False, requests="1/hour")
    harness.ask(ask_for("alice"))
    sent = bytes(harness.ask(ask_for("alice", version="1.0")).socket.sent)
    names = [line.partition(b":")[0].decode() for line in sent.split(b"\r\n")[1:-2]]
    assert names == [
        *("Content-Type", "Date", "Cache-Control", "X-Content-Type-Options", "X-Request-ID"),
        *("Retry-After", "RateLimit-Policy", "RateLimit", "Connection", "Content-Length"),
    ]

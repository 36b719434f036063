"""What the handlers send, log and leave behind."""

import gc
from collections.abc import Callable

import pytest

from support.http.in_process import Harness, ask_for
from support.processes.service import CARDS_ONLY_KEY

REQUESTS = {
    200: ask_for("alice"),
    401: ask_for("alice", key="guessed"),
    403: ask_for("alice", key=CARDS_ONLY_KEY),
    404: ask_for("nobody"),
    405: ask_for("alice").replace(b"POST", b"PUT", 1),
    422: ask_for("a b"),
}


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

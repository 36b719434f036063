"""Connections without a valid key share the event loop with those that have one."""

from collections.abc import Callable

import pytest

from support.http.in_process import FakeClient, Harness, ask_for
from support.processes.service import CARDS_ONLY_KEY
from tornado_idv.http.connection_table import HttpLimits

pytestmark = pytest.mark.slow

MS = 1 / 1024
"""About a millisecond, and a number whose sums are exact."""
BAD = ask_for("alice", key="guessed")
PIPELINED = 20
_ITEMS = b'{"items": [%b]}' % b", ".join([b'{"input": "not valid"}'] * 100)
LEFT_TO_HANDLERS = {
    "invalid": (ask_for("not valid"), 422),
    "batch": (
        ask_for("").partition(b"Content-Length")[0].replace(b"/url", b"/batch")
        + b"Content-Length: %d\r\n\r\n%b" % (len(_ITEMS), _ITEMS),
        200,
    ),
}

MakeHarness = Callable[..., Harness]


def turns_until(harness: Harness, condition: Callable[[], bool]) -> int:
    """Event-loop iterations until the condition holds."""
    turns = 0
    while not condition():
        harness.loop.turn()
        turns += 1
        assert turns < 1000
    return turns


def answered_at_once(harness: Harness, clients: list[FakeClient], data: bytes) -> int:
    """How many get a response as fast as any does, when all of them send this."""
    before = sum(len(each.statuses) for each in clients)
    for each in clients:
        each.socket.arrive(data)
    for _ in range(3):  # in the queue, then Tornado's handlers in the next iteration
        harness.loop.turn()
    answered = sum(len(each.statuses) for each in clients) - before
    harness.loop.settle()
    return answered


def test_new_clients_are_served_while_accepted_ones_pipeline(make_harness: MakeHarness) -> None:
    """Many pipelines make iterations long; with one start in each, new clients waited for all."""
    harness = make_harness(fast_path=False, seconds_per_request=MS)
    busy = [harness.ask(ask_for("alice")) for _ in range(40)]
    new = [harness.call() for _ in range(40)]
    for each in busy:
        each.socket.arrive(ask_for("alice") * PIPELINED)
    for each in new:
        each.socket.arrive(ask_for("alice"))
    before = harness.app.asked
    turns_until(harness, lambda: all(each.statuses for each in new))
    assert harness.app.asked - before < 130  # each takes a millisecond
    assert all(1 < len(each.statuses) < 10 for each in busy)
    harness.loop.settle()
    assert all(each.statuses == [200] * (PIPELINED + 1) for each in busy)


@pytest.mark.parametrize(("data", "status"), LEFT_TO_HANDLERS.values(), ids=LEFT_TO_HANDLERS)
def test_many_invalid_requests_or_batches_do_not_delay_cached_lookups(
    make_harness: MakeHarness, data: bytes, status: int
) -> None:
    """Whichever way these arrive, an iteration has a millisecond of the others."""
    harness = make_harness(seconds_per_request=MS / 5)
    whole, in_parts = [harness.ask(*[ask_for("alice")] * 3) for _ in range(2)]
    head, body = ask_for("alice").split(b"{")
    busy = [harness.ask(ask_for("alice")) for _ in range(100)]
    for each in busy:
        each.socket.arrive(data)
    for turn in range(1, 11):
        before = harness.app.asked
        whole.socket.arrive(ask_for("alice"))
        in_parts.socket.arrive(b"{" + body if turn % 2 == 0 else head)
        harness.loop.turn()
        assert harness.app.asked - before <= 7
        assert len(whole.statuses) == 3 + turn
        assert len(in_parts.statuses) == 3 + turn // 2
    assert sum(len(each.statuses) for each in busy) < 100 + 7 * 10
    harness.loop.settle()
    assert all(each.statuses == [200, status] for each in busy)


def test_new_client_is_served_before_a_crowd_with_bad_keys(make_harness: MakeHarness) -> None:
    """Each of the crowd has had a response, and always has a request that waits."""
    harness = make_harness()
    new, *crowd = (harness.call() for _ in range(51))
    for each in crowd:
        each.socket.arrive(BAD * PIPELINED)
    turns_until(harness, lambda: all(each.statuses for each in crowd))
    before = sum(len(each.statuses) for each in crowd)
    new.socket.arrive(ask_for("alice"))
    turns_until(harness, lambda: new.statuses == [200])
    assert sum(len(each.statuses) for each in crowd) <= before + 5
    harness.loop.settle()
    assert all(each.statuses == [401] * PIPELINED for each in crowd)


def test_clients_that_are_gone_are_not_waited_for(make_harness: MakeHarness) -> None:
    harness = make_harness()
    new, *crowd = (harness.call() for _ in range(51))
    for each in crowd:
        each.socket.arrive(BAD)
    harness.loop.turn()
    for each in crowd:
        each.socket.vanish()
    harness.loop.turn()
    new.socket.arrive(ask_for("alice"))
    assert turns_until(harness, lambda: new.statuses == [200]) < 10


def test_a_client_waits_again_after_a_bad_key(make_harness: MakeHarness) -> None:
    """A valid key counts for the requests that directly follow it."""
    harness = make_harness()
    clients = [harness.ask(ask_for("alice"), BAD) for _ in range(20)]
    assert answered_at_once(harness, clients, BAD) <= 2
    assert [each.statuses for each in clients] == [[200, 401, 401]] * 20


FORBIDDEN = ask_for("alice", key=CARDS_ONLY_KEY)


@pytest.mark.parametrize(
    ("fast_path", "first", "second", "statuses"),
    [
        (False, ask_for("alice"), ask_for("alice"), [401, 200, 200]),
        (True, ask_for("alice"), ask_for("a b"), [401, 200, 422]),
        (True, ask_for("##"), ask_for("a b"), [401, 404, 422]),
        (True, FORBIDDEN, FORBIDDEN, [401, 403, 403]),
    ],
    ids=["handlers", "after the fast path", "after its lookup", "without the scope"],
)
def test_clients_with_a_valid_key_do_not_wait_one_by_one(
    make_harness: MakeHarness, first: bytes, second: bytes, statuses: list[int], *, fast_path: bool
) -> None:
    harness = make_harness(fast_path=fast_path)
    clients = [harness.ask(BAD, first.replace(b"##", b"%02d" % each)) for each in range(20)]
    assert answered_at_once(harness, clients, second) == 20
    assert [each.statuses for each in clients] == [statuses] * 20


@pytest.mark.parametrize("ahead", [0, 2, 500], ids=["idle", "queued", "paused"])
def test_drain_waits_for_a_client_that_does_not_read_as_long_as_it_may_be_idle(
    make_harness: MakeHarness, ahead: int
) -> None:
    harness = make_harness(fast_path=False, limits=HttpLimits(idle_timeout=10.0))
    request = ask_for("alice")
    client = harness.ask(request)
    client.socket.reads = False
    client.send(request * 10)
    client.socket.arrive(request * ahead)
    harness.loop.turn()
    draining = harness.loop.create_task(harness.server.drain())
    harness.loop.forward(9.8)
    assert not client.socket.lost
    harness.loop.forward(0.5)
    assert client.socket.lost
    assert draining.done()
    assert client.socket.misuse == []

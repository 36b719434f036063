"""More clients than the connection limit, and many clients at the same time."""

from collections.abc import Callable
from itertools import pairwise
from math import inf

import pytest

from support.http.in_process import Harness, ask_for
from tornado_idv.http import connection_table
from tornado_idv.http.connection_table import HttpLimits

MOST = connection_table._MAX_REJECTED  # noqa: SLF001 - the bound itself
AT_ONCE = connection_table._EXPIRE_BATCH  # noqa: SLF001 - the bound itself


MakeHarness = Callable[..., Harness]


@pytest.fixture
def harness(make_harness: MakeHarness) -> Harness:
    return make_harness(limits=HttpLimits(max_connections=2))


def test_rejected_connections_hold_few_descriptors(harness: Harness) -> None:
    """The others are closed with their answer; who waits is closed a second later."""
    taken = [harness.call() for _ in range(2)]
    refused = [harness.call() for _ in range(MOST + 10)]
    assert all(each.statuses == [503] and each.socket.closed for each in refused)
    assert [each.socket.lost for each in refused] == [False] * MOST + [True] * 10
    harness.loop.forward(1.2)
    for _ in range(MOST):  # a few at a time
        harness.loop.now += 0.001
        harness.loop.settle()
    assert all(each.socket.lost for each in refused)
    assert [each.send(ask_for("alice")).statuses for each in taken] == [[200]] * 2


def test_rejected_connection_does_not_count(harness: Harness) -> None:
    taken = [harness.call() for _ in range(2)]
    for _ in range(MOST):
        assert harness.ask(ask_for("alice")).statuses == [503]
    taken[0].socket.vanish()
    harness.loop.settle()
    assert harness.ask(ask_for("alice")).statuses == [200]
    assert harness.ask(ask_for("alice")).statuses == [503]


def test_disconnected_client_does_not_time_out(make_harness: MakeHarness) -> None:
    harness = make_harness()
    gone = harness.call()
    gone.socket.vanish()
    harness.loop.settle()
    assert gone.connection.deadline == inf


def test_client_that_sends_while_those_before_it_time_out_is_not_closed(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness()
    crowd = [harness.call() for _ in range(2 * AT_ONCE + 1)]
    harness.loop.now += HttpLimits().idle_timeout
    harness.loop.turn()
    assert 0 < sum(each.socket.closed for each in crowd) <= AT_ONCE
    crowd[-1].send(ask_for("alice"))
    for _ in range(20):
        harness.loop.now += 0.001
        harness.loop.turn()
    assert [each.socket.closed for each in crowd] == [True] * 2 * AT_ONCE + [False]
    assert crowd[-1].statuses == [200]


def test_timed_out_connections_are_closed_in_batches_within_a_tenth_of_a_second(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness(limits=HttpLimits(max_connections=1000))
    crowd = [harness.call() for _ in range(100 * AT_ONCE)]
    late = crowd[::20]
    others = [each for each in crowd if each not in late]
    harness.loop.forward(1)
    for each in others:
        each.send(ask_for("alice"))
    harness.loop.now = late[0].connection.deadline
    left = [0]
    while left[-1] < len(late):
        harness.loop.now += 0.001
        harness.loop.turn()
        left.append(sum(each.socket.closed for each in late))
    assert len(left) <= 130
    assert max(after - before for before, after in pairwise(left)) <= AT_ONCE
    assert not any(each.socket.closed for each in others)


@pytest.mark.parametrize(
    ("guesses", "half_closed"),
    [(1, False), (3, False), (1, True)],
    ids=["one each", "several ahead", "half-closed"],
)
def test_many_concurrent_bad_keys_do_not_delay_other_clients(
    make_harness: MakeHarness, guesses: int, *, half_closed: bool
) -> None:
    """Authenticated clients are answered before most of them, also without the fast path."""
    harness = make_harness()
    known = harness.ask(ask_for("alice"))
    guessers = [harness.call() for _ in range(20)]
    for guesser in guessers:
        guesser.socket.arrive(ask_for("alice", key="guessed") * guesses)
        if half_closed:
            guesser.socket.end()
    harness.loop.turn()
    known.socket.arrive(ask_for("nobody"))
    while len(known.statuses) == 1:
        harness.loop.turn()
    assert known.statuses == [200, 404]
    assert 0 < sum(len(guesser.statuses) for guesser in guessers) < 6
    harness.loop.settle()
    assert [guesser.statuses for guesser in guessers] == [[401] * guesses] * 20
    harness.loop.forward(1.5)
    assert all(guesser.socket.closed is half_closed for guesser in guessers)


def test_queued_client_does_not_time_out(make_harness: MakeHarness) -> None:
    harness = make_harness(limits=HttpLimits(idle_timeout=0.05))
    guessers = [harness.call() for _ in range(50)]
    for guesser in guessers:
        guesser.socket.arrive(ask_for("alice", key="guessed"))
    harness.loop.turn()
    for _ in range(10):
        harness.loop.now += 0.02
        harness.loop.turn()
    harness.loop.settle()
    assert [guesser.statuses for guesser in guessers] == [[401]] * 50


SLOW_BEGINNINGS = {
    "the first line": b"POST /",
    "a header": b"POST / HTTP/1.1\r\nHost: x\r\nX: ",
    "the body": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n",
    "a chunk": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n",
    "an extension": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;",
}


@pytest.mark.parametrize("begin", SLOW_BEGINNINGS.values(), ids=SLOW_BEGINNINGS)
def test_client_sending_single_bytes_has_no_more_time(
    begin: bytes, make_harness: MakeHarness
) -> None:
    harness = make_harness(limits=HttpLimits(idle_timeout=1.0, body_timeout=1.0))
    client = harness.call().send(begin)
    for _ in range(4):
        assert client.statuses == []
        harness.loop.forward(0.3)
        client.send(b"a")
    assert client.statuses == [408]


def test_client_sending_single_bytes_times_out_under_load(make_harness: MakeHarness) -> None:
    """Though the last byte may wait for its turn just when the time is up."""
    harness = make_harness(limits=HttpLimits(body_timeout=1.0))
    slow = harness.ask(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n")
    crowd = [harness.call() for _ in range(20)]
    for _ in range(30):
        for guesser in crowd:
            guesser.socket.arrive(ask_for("alice", key="guessed"))
        harness.loop.turn()
        slow.socket.arrive(b"a")
        harness.loop.now += 0.05
        for _ in range(3):
            harness.loop.turn()
    harness.loop.settle()
    assert slow.statuses == [408]
    assert all(guesser.statuses == [401] * 30 for guesser in crowd)

"""More clients than there is room for: each is told so, and none of them counts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise

import pytest

from support.in_process import Harness, ask_for, harnesses
from tornado_idv.http import connections
from tornado_idv.http.limits import HttpLimits

MOST = connections._MAX_REJECTED
AT_ONCE = connections._EXPIRE_BATCH


@pytest.fixture
def harness() -> Iterator[Harness]:
    with harnesses() as make:
        yield make(limits=HttpLimits(max_connections=2))


def test_few_who_are_refused_may_hold_a_descriptor(harness: Harness) -> None:
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


def test_who_is_refused_takes_nobody_s_place(harness: Harness) -> None:
    taken = [harness.call() for _ in range(2)]
    for _ in range(MOST):
        assert harness.ask(ask_for("alice")).statuses == [503]
    taken[0].socket.vanish()
    harness.loop.settle()
    assert harness.ask(ask_for("alice")).statuses == [200]
    assert harness.ask(ask_for("alice")).statuses == [503]


def test_it_is_told_once_a_minute(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        for _ in range(12):
            harness.call()
        harness.loop.forward(61)
    told = [record.message for record in caplog.records]
    assert told == ["server.max_connections reached (2): new connections get 503"] * 2


def test_a_crowd_that_is_late_at_once_holds_nobody_up() -> None:
    """It is left by and by: in between the others have their turn."""
    with harnesses() as make:
        harness = make()
        crowd = [harness.call() for _ in range(2 * AT_ONCE + 1)]
        harness.loop.now += HttpLimits().idle_timeout
        left = [0]
        while left[-1] < len(crowd):
            harness.loop.now += 0.001
            harness.loop.turn()
            left.append(sum(each.socket.closed for each in crowd))
            assert left[-1] - left[-2] <= AT_ONCE
            assert len(left) < 20


def test_a_crowd_that_comes_and_goes_delays_no_look() -> None:
    """A round of looks is not made longer by those who have left meanwhile."""
    with harnesses() as make:
        harness = make(limits=HttpLimits(max_connections=5000))
        crowd = [harness.call() for _ in range(3000)]
        slow = harness.call()
        harness.loop.forward(0.05)
        for each in crowd:
            each.socket.vanish()
        harness.loop.settle()
        slow.connection.deadline = harness.loop.now
        for _ in range(250):
            harness.loop.now += 0.001
            harness.loop.turn()
        assert slow.socket.closed


def test_who_has_left_is_not_late() -> None:
    with harnesses() as make:
        harness = make()
        gone = [harness.call() for _ in range(AT_ONCE)]
        late = harness.call()
        harness.loop.now += 9.99
        harness.loop.settle()
        for each in gone:
            each.socket.vanish()
        harness.loop.settle()
        assert all(each.connection.deadline > late.connection.deadline for each in gone)


def test_those_late_among_many_are_left_within_a_tenth_of_a_second_and_not_together() -> None:
    with harnesses() as make:
        harness = make(limits=HttpLimits(max_connections=1000))
        crowd = [harness.call() for _ in range(100 * AT_ONCE)]
        late = crowd[::100]
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
        assert max(after - before for before, after in pairwise(left)) < len(late)
        assert not any(each.socket.closed for each in others)


@pytest.mark.parametrize("guesses", [1, 3], ids=["one each", "several ahead"])
def test_a_crowd_that_guesses_at_once_holds_nobody_up(guesses: int) -> None:
    """Who was understood before is answered before most of them, also by the long way."""
    with harnesses() as make:
        harness = make()
        known = harness.ask(ask_for("alice"))
        guessers = [harness.call() for _ in range(20)]
        for guesser in guessers:
            guesser.socket.arrive(ask_for("alice", key="guessed") * guesses)
        harness.loop.turn()
        known.socket.arrive(ask_for("nobody"))
        while len(known.statuses) == 1:
            harness.loop.turn()
        assert known.statuses == [200, 404]
        assert 0 < sum(len(guesser.statuses) for guesser in guessers) < 6
        harness.loop.settle()
        assert [guesser.statuses for guesser in guessers] == [[401] * guesses] * 20


def test_a_crowd_whose_guesses_begin_alike_takes_turns_too() -> None:
    with harnesses() as make:
        harness = make()
        guess = ask_for("alice", key="guessed")
        guessers = [harness.ask(guess) for _ in range(20)]
        for guesser in guessers:
            guesser.socket.arrive(guess)
        for _ in range(3):
            harness.loop.turn()
        assert sum(len(guesser.statuses) for guesser in guessers) < 20 + 6
        harness.loop.settle()
        assert [guesser.statuses for guesser in guessers] == [[401] * 2] * 20


def test_who_was_understood_waits_for_no_turn() -> None:
    with harnesses() as make:
        harness = make(packets=False)
        clients = [harness.ask(ask_for("alice", key="guessed")) for _ in range(20)]
        for client in clients:
            client.send(ask_for("alice"))
        for client in clients:
            client.socket.arrive(ask_for("alice"))
        harness.loop.turn()
        assert [client.statuses for client in clients] == [[401, 200, 200]] * 20


def test_who_was_answered_from_its_bytes_waits_for_no_turn() -> None:
    with harnesses() as make:
        harness = make()
        for _ in range(2):
            harness.ask(ask_for("alice"))  # is known from now on
        clients = [harness.ask(ask_for("alice")) for _ in range(20)]
        for client in clients:
            client.socket.arrive(ask_for("a b"))
        harness.loop.turn()
        assert [client.statuses for client in clients] == [[200, 422]] * 20


def test_a_crowd_that_guesses_and_says_no_more_holds_nobody_up() -> None:
    """All are answered, one after the other, though they have ended their side."""
    with harnesses() as make:
        harness = make()
        guessers = [harness.call() for _ in range(20)]
        for guesser in guessers:
            guesser.socket.arrive(ask_for("alice", key="guessed"))
            guesser.socket.end()
        for _ in range(5):
            harness.loop.turn()
        assert 0 < sum(len(guesser.statuses) for guesser in guessers) < 6
        harness.loop.settle()
        assert [guesser.statuses for guesser in guessers] == [[401]] * 20
        harness.loop.forward(1.5)
        assert all(guesser.socket.closed for guesser in guessers)


def test_who_has_left_waits_for_no_turn() -> None:
    with harnesses() as make:
        harness = make()
        harness.ask(ask_for("alice"))
        asked = harness.call()
        guessers = [harness.call() for _ in range(20)]
        for guesser in guessers:
            guesser.socket.arrive(ask_for("alice", key="guessed"))
        harness.loop.turn()
        for guesser in guessers:
            guesser.socket.vanish()
        harness.loop.turn()
        asked.socket.arrive(ask_for("alice"))
        for _ in range(4):
            harness.loop.turn()
        assert asked.statuses == [200]


def test_who_waits_for_a_turn_is_not_late() -> None:
    with harnesses() as make:
        harness = make(limits=HttpLimits(idle_timeout=0.05))
        guessers = [harness.call() for _ in range(50)]
        for guesser in guessers:
            guesser.socket.arrive(ask_for("alice", key="guessed"))
        harness.loop.turn()
        for _ in range(10):
            harness.loop.now += 0.02
            harness.loop.turn()
        harness.loop.settle()
        assert [guesser.statuses for guesser in guessers] == [[401]] * 50


def test_who_sends_a_byte_at_a_time_in_a_crowd_is_late_all_the_same() -> None:
    """Though the last byte may wait for its turn just when the time is up."""
    with harnesses() as make:
        harness = make(limits=HttpLimits(body_timeout=1.0))
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

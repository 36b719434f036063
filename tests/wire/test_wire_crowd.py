"""More callers than there is room for: each is told so, and none of them counts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise

import pytest

from support.in_process import Ground, ask_for, grounds
from tornado_idv.http import connections
from tornado_idv.http.limits import HttpLimits

MOST = connections._MAX_REJECTED
AT_ONCE = connections._EXPIRE_BATCH


@pytest.fixture
def ground() -> Iterator[Ground]:
    with grounds() as make:
        yield make(limits=HttpLimits(max_connections=2))


def test_few_who_are_refused_may_hold_a_descriptor(ground: Ground) -> None:
    """The others are closed with their answer; who waits is closed a second later."""
    taken = [ground.call() for _ in range(2)]
    refused = [ground.call() for _ in range(MOST + 10)]
    assert all(each.statuses == [503] and each.socket.closed for each in refused)
    assert [each.socket.lost for each in refused] == [False] * MOST + [True] * 10
    ground.loop.forward(1.2)
    for _ in range(MOST):  # a few at a time
        ground.loop.now += 0.001
        ground.loop.settle()
    assert all(each.socket.lost for each in refused)
    assert [each.send(ask_for("alice")).statuses for each in taken] == [[200]] * 2


def test_who_is_refused_takes_nobody_s_place(ground: Ground) -> None:
    taken = [ground.call() for _ in range(2)]
    for _ in range(MOST):
        assert ground.ask(ask_for("alice")).statuses == [503]
    taken[0].socket.vanish()
    ground.loop.settle()
    assert ground.ask(ask_for("alice")).statuses == [200]
    assert ground.ask(ask_for("alice")).statuses == [503]


def test_it_is_told_once_a_minute(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        for _ in range(12):
            ground.call()
        ground.loop.forward(61)
    told = [record.message for record in caplog.records]
    assert told == ["server.max_connections reached (2): new connections get 503"] * 2


def test_a_crowd_that_is_late_at_once_holds_nobody_up() -> None:
    """It is left by and by: in between the others have their turn."""
    with grounds() as make:
        ground = make()
        crowd = [ground.call() for _ in range(2 * AT_ONCE + 1)]
        ground.loop.now += HttpLimits().idle_timeout
        left = [0]
        while left[-1] < len(crowd):
            ground.loop.now += 0.001
            ground.loop.turn()
            left.append(sum(each.socket.closed for each in crowd))
            assert left[-1] - left[-2] <= AT_ONCE
            assert len(left) < 20


def test_a_crowd_that_comes_and_goes_delays_no_look() -> None:
    """A round of looks is not made longer by those who have left meanwhile."""
    with grounds() as make:
        ground = make(limits=HttpLimits(max_connections=5000))
        crowd = [ground.call() for _ in range(3000)]
        slow = ground.call()
        ground.loop.forward(0.05)
        for each in crowd:
            each.socket.vanish()
        ground.loop.settle()
        slow.connection.deadline = ground.loop.now
        for _ in range(250):
            ground.loop.now += 0.001
            ground.loop.turn()
        assert slow.socket.closed


def test_who_has_left_is_not_late() -> None:
    with grounds() as make:
        ground = make()
        gone = [ground.call() for _ in range(AT_ONCE)]
        late = ground.call()
        ground.loop.now += 9.99
        ground.loop.settle()
        for each in gone:
            each.socket.vanish()
        ground.loop.settle()
        assert all(each.connection.deadline > late.connection.deadline for each in gone)


def test_those_late_among_many_are_left_within_a_tenth_of_a_second_and_not_together() -> None:
    with grounds() as make:
        ground = make(limits=HttpLimits(max_connections=1000))
        crowd = [ground.call() for _ in range(100 * AT_ONCE)]
        late = crowd[::100]
        others = [each for each in crowd if each not in late]
        ground.loop.forward(1)
        for each in others:
            each.send(ask_for("alice"))
        ground.loop.now = late[0].connection.deadline
        left = [0]
        while left[-1] < len(late):
            ground.loop.now += 0.001
            ground.loop.turn()
            left.append(sum(each.socket.closed for each in late))
        assert len(left) <= 130
        assert max(after - before for before, after in pairwise(left)) < len(late)
        assert not any(each.socket.closed for each in others)


@pytest.mark.parametrize("guesses", [1, 3], ids=["one each", "several ahead"])
def test_a_crowd_that_guesses_at_once_holds_nobody_up(guesses: int) -> None:
    """Who was understood before is answered before most of them, also by the long way."""
    with grounds() as make:
        ground = make()
        known = ground.ask(ask_for("alice"))
        guessers = [ground.call() for _ in range(20)]
        for guesser in guessers:
            guesser.socket.arrive(ask_for("alice", key="guessed") * guesses)
        ground.loop.turn()
        known.socket.arrive(ask_for("nobody"))
        while len(known.statuses) == 1:
            ground.loop.turn()
        assert known.statuses == [200, 404]
        assert 0 < sum(len(guesser.statuses) for guesser in guessers) < 6
        ground.loop.settle()
        assert [guesser.statuses for guesser in guessers] == [[401] * guesses] * 20


def test_a_crowd_whose_guesses_begin_alike_takes_turns_too() -> None:
    with grounds() as make:
        ground = make()
        guess = ask_for("alice", key="guessed")
        guessers = [ground.ask(guess) for _ in range(20)]
        for guesser in guessers:
            guesser.socket.arrive(guess)
        for _ in range(3):
            ground.loop.turn()
        assert sum(len(guesser.statuses) for guesser in guessers) < 20 + 6
        ground.loop.settle()
        assert [guesser.statuses for guesser in guessers] == [[401] * 2] * 20


def test_who_was_understood_waits_for_no_turn() -> None:
    with grounds() as make:
        ground = make(packets=False)
        callers = [ground.ask(ask_for("alice", key="guessed")) for _ in range(20)]
        for caller in callers:
            caller.send(ask_for("alice"))
        for caller in callers:
            caller.socket.arrive(ask_for("alice"))
        ground.loop.turn()
        assert [caller.statuses for caller in callers] == [[401, 200, 200]] * 20


def test_who_was_answered_from_its_bytes_waits_for_no_turn() -> None:
    with grounds() as make:
        ground = make()
        for _ in range(2):
            ground.ask(ask_for("alice"))  # is known from now on
        callers = [ground.ask(ask_for("alice")) for _ in range(20)]
        for caller in callers:
            caller.socket.arrive(ask_for("a b"))
        ground.loop.turn()
        assert [caller.statuses for caller in callers] == [[200, 422]] * 20


def test_a_crowd_that_guesses_and_says_no_more_holds_nobody_up() -> None:
    """All are answered, one after the other, though they have ended their side."""
    with grounds() as make:
        ground = make()
        guessers = [ground.call() for _ in range(20)]
        for guesser in guessers:
            guesser.socket.arrive(ask_for("alice", key="guessed"))
            guesser.socket.end()
        for _ in range(5):
            ground.loop.turn()
        assert 0 < sum(len(guesser.statuses) for guesser in guessers) < 6
        ground.loop.settle()
        assert [guesser.statuses for guesser in guessers] == [[401]] * 20
        ground.loop.forward(1.5)
        assert all(guesser.socket.closed for guesser in guessers)


def test_who_has_left_waits_for_no_turn() -> None:
    with grounds() as make:
        ground = make()
        ground.ask(ask_for("alice"))
        asked = ground.call()
        guessers = [ground.call() for _ in range(20)]
        for guesser in guessers:
            guesser.socket.arrive(ask_for("alice", key="guessed"))
        ground.loop.turn()
        for guesser in guessers:
            guesser.socket.vanish()
        ground.loop.turn()
        asked.socket.arrive(ask_for("alice"))
        for _ in range(4):
            ground.loop.turn()
        assert asked.statuses == [200]


def test_who_waits_for_a_turn_is_not_late() -> None:
    with grounds() as make:
        ground = make(limits=HttpLimits(idle_timeout=0.05))
        guessers = [ground.call() for _ in range(50)]
        for guesser in guessers:
            guesser.socket.arrive(ask_for("alice", key="guessed"))
        ground.loop.turn()
        for _ in range(10):
            ground.loop.now += 0.02
            ground.loop.turn()
        ground.loop.settle()
        assert [guesser.statuses for guesser in guessers] == [[401]] * 50


def test_who_sends_a_byte_at_a_time_in_a_crowd_is_late_all_the_same() -> None:
    """Though the last byte may wait for its turn just when the time is up."""
    with grounds() as make:
        ground = make(limits=HttpLimits(body_timeout=1.0))
        slow = ground.ask(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n")
        crowd = [ground.call() for _ in range(20)]
        for _ in range(30):
            for guesser in crowd:
                guesser.socket.arrive(ask_for("alice", key="guessed"))
            ground.loop.turn()
            slow.socket.arrive(b"a")
            ground.loop.now += 0.05
            for _ in range(3):
                ground.loop.turn()
        ground.loop.settle()
        assert slow.statuses == [408]
        assert all(guesser.statuses == [401] * 30 for guesser in crowd)

"""One head again and again on a connection: what was understood of it is no answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from inprocess import SHORT_LIVED_KEY, Ground, ask_for, grounds
from serving import CARDS_ONLY_KEY

SAME_EACH_TIME = {
    "a good one": (ask_for("alice"), 200),
    "a wrong key": (ask_for("alice", key="B" * 40), 401),
    "a key for other things": (ask_for("alice", key=CARDS_ONLY_KEY), 403),
    "another media type": (ask_for("alice", b"Content-Type: text/plain"), 415),
    "a coding of content": (ask_for("alice", b"Content-Encoding: gzip"), 415),
    "JSON not taken": (ask_for("alice", b"Accept: text/html"), 406),
    "no nickname": (ask_for("a b"), 422),
}


@pytest.fixture
def ground() -> Iterator[Ground]:
    with grounds() as make:
        yield make(packets=False)


@pytest.mark.parametrize(("data", "status"), SAME_EACH_TIME.values(), ids=list(SAME_EACH_TIME))
def test_it_is_answered_the_same_each_time(ground: Ground, data: bytes, status: int) -> None:
    assert ground.ask(data, data, data).statuses == [status] * 3


def test_a_key_that_expires_is_seen_at_the_next_request(ground: Ground) -> None:
    data = ask_for("alice", key=SHORT_LIVED_KEY)
    caller = ground.ask(data, data)
    ground.loop.now += 100
    assert caller.send(data, data).statuses == [200, 200, 401, 401]


def test_a_key_that_is_taken_away_is_seen_at_the_next_request(ground: Ground) -> None:
    data = ask_for("alice")
    caller = ground.ask(data, data)
    taken = dict(ground.keys._keys)
    ground.keys._keys.clear()
    caller.send(data, data)
    ground.keys._keys.update(taken)
    assert caller.send(data).statuses == [200, 200, 401, 401, 200]


def test_the_caller_s_request_id_comes_back_each_time(ground: Ground) -> None:
    data = ask_for("alice", b"X-Request-ID: mine")
    caller = ground.ask(data, data)
    assert caller.socket.sent.count(b"X-Request-ID: mine\r\n") == 2

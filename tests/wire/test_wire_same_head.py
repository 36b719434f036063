"""One head again and again on a connection: what was understood of it is no answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.http.in_process import FakeClient, Harness, ask_for, reachable
from support.processes.service import KEY

GOOD = ask_for("alice")
WRONG = ask_for("alice", key="B" * 40)


@pytest.fixture
def harness(make_harness: Callable[..., Harness]) -> Harness:
    return make_harness(fast_path=False)


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "none"])
@pytest.mark.parametrize("nickname", ["alice", "nobody", "a b", "nobody{}"])
def test_id_of_the_client_that_proxies_do_not_know_is_returned_to_those_who_send_it(
    make_harness: Callable[..., Harness], nickname: str, *, fast_path: bool
) -> None:
    """Also with a response from a lookup, as each of those for ever new nicknames is."""
    harness = make_harness(fast_path=fast_path)
    data = [
        ask_for(nickname.format(number), b"X-IDV-Request-ID: %b" % each)
        for number, each in enumerate((b"a", b"b", b"c", b"{}"))
    ]
    sent = harness.ask(*data, ask_for(nickname.format(4))).socket.sent
    ids = [line[18:] for line in sent.split(b"\r\n") if line.startswith(b"X-IDV-Request-ID: ")]
    assert ids == [b"a", b"b", b"c"]
    assert sent.count(b"\r\nX-Request-ID: ") == 5


def test_rejected_head_is_cached_once_it_was_accepted(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness()
    client = harness.ask(ask_for("a b"), ask_for("a b"), ask_for("nob"), ask_for("nob"))
    assert client.send(ask_for("nob")).statuses == [422, 422, 404, 404, 404]
    assert harness.app.asked == 4


def test_heads_of_many_kinds_of_client_of_one_key_are_known(
    make_harness: Callable[..., Harness],
) -> None:
    """In rotation on one connection, as behind a gateway, and with another ``Host`` each time.

    Also with some requests of each kind in a row.
    """
    harness = make_harness()
    kinds = [ask_for("alice", b"X-Client-%d: 1" % number) for number in range(30)]
    client = harness.ask(*kinds, *kinds)
    before = harness.app.asked
    for number in range(10):
        client.send(*(each.replace(b"Host: x", b"Host: %d.x:8080" % number) for each in kinds))
    client.send(*(each for each in kinds for _ in range(3)))
    assert client.statuses == [200] * 450
    assert harness.app.asked == before


@pytest.mark.parametrize("turns", range(8))
def test_data_received_during_a_request_is_not_part_of_it(
    make_harness: Callable[..., Harness], turns: int
) -> None:
    """Though both have the same head, and the fast path is to learn what each of them meant."""
    harness = make_harness()
    nobody = ask_for("nobod")
    client = harness.ask(nobody, nobody)
    client.socket.arrive(GOOD)
    for _ in range(turns):
        harness.loop.turn()
    client.send(nobody)
    client.send(GOOD, nobody, GOOD, GOOD)
    assert client.statuses == [404, 404, 200, 404, 200, 404, 200, 200]
    assert harness.ask(GOOD, nobody).statuses == [200, 404]


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "none"])
@pytest.mark.parametrize("key", [KEY, "B" * 40], ids=["good", "wrong"])
def test_long_head_is_not_cached(
    make_harness: Callable[..., Harness], key: str, *, fast_path: bool
) -> None:
    """There may be thousands of connections."""
    harness = make_harness(fast_path=fast_path)
    fields = [b"X-%d: " % number + b"a" * 150 for number in range(90)]
    client = harness.ask(*[ask_for("alice", *fields, key=key)] * 2)
    assert len(client.answers) == 2
    assert largest_held(client) <= 4096


def test_rejected_request_is_not_cached(harness: Harness) -> None:
    client = harness.ask(b"a" * 200_000)
    assert client.statuses == [431]
    assert largest_held(client) <= 4096


def largest_held(client: FakeClient) -> int:
    """The length of the longest bytes that a connection holds."""
    connection = client.connection
    held = reachable(vars(connection)["_parser"], vars(connection)["_match"])
    return max(len(each) for each in held if isinstance(each, (bytes, bytearray)))

"""Many pipelined requests, and responses that the client does not read."""

from collections.abc import Callable

import pytest

from support.http.http_server import reject
from support.http.in_process import HIGH_WATER, Harness, ask_for
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.http.serving import Serving
from tornado_idv.model import User

MANY = 1000
BUFFERED = 16 * 1024 + 16 * 1024 + 256 * 1024
"""Bytes that a connection may hold: its limit, and one more read."""


def numbered(nickname: str, number: int) -> bytes:
    """A request with an id of its own."""
    return ask_for(nickname, b"X-Request-ID: %d" % number)


def ids(sent: bytes) -> list[int]:
    lines = sent.split(b"\r\n")
    return [int(line[14:]) for line in lines if line.startswith(b"X-Request-ID: ")]


@pytest.mark.slow
@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "none"])
def test_thousand_pipelined_requests_are_answered_in_order(
    make_harness: Callable[..., Harness], *, fast_path: bool
) -> None:
    harness = make_harness(fast_path=fast_path)
    harness.users.put(
        *(User(plan="Free", card_number=str(number), nickname=f"n{number}") for number in range(50))
    )
    names = [f"n{number % 70}" for number in range(MANY)]
    pipeline = b"".join(numbered(name, number) for number, name in enumerate(names))
    for data in ([pipeline], [pipeline[at : at + 1400] for at in range(0, len(pipeline), 1400)]):
        client = harness.ask(*data)
        assert ids(bytes(client.socket.sent)) == [*range(MANY)]
        for (status, body), name in zip(client.answers, names, strict=True):
            assert status == (200 if int(name[1:]) < 50 else 404)
            assert status == 404 or b'"nickname":"@%s"' % name.encode() in body


@pytest.mark.slow
def test_endless_pipeline_uses_bounded_memory(make_harness: Callable[..., Harness]) -> None:
    """What was sent too far ahead is left in the socket until its turn."""
    harness = make_harness()
    client = harness.call()
    request = numbered("alice", 1)
    most = 0
    client.socket.arrive(request * 5 * MANY)
    while client.socket.arrived or client.buffered:
        harness.loop.turn()
        most = max(most, client.buffered)
    harness.loop.settle()
    assert most <= BUFFERED
    assert client.statuses == [200] * 5 * MANY


@pytest.mark.parametrize("ahead", [1, MANY], ids=["one at a time", "a pipeline"])
@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "none"])
def test_client_that_never_reads_uses_bounded_memory_and_is_closed(
    make_harness: Callable[..., Harness], *, fast_path: bool, ahead: int
) -> None:
    harness = make_harness(fast_path=fast_path, limits=HttpLimits(idle_timeout=10.0))
    client = harness.ask(ask_for("alice"))
    client.socket.reads = False
    for _ in range(5 * MANY // ahead):
        client.send(ask_for("alice") * ahead)
        assert client.buffered <= BUFFERED
    assert client.socket.most_waiting <= HIGH_WATER + 1024
    assert client.socket.arrived
    harness.loop.forward(9.8)
    assert not client.socket.lost
    harness.loop.forward(0.4)
    assert client.socket.lost
    assert client.socket.misuse == []


@pytest.mark.parametrize("line", [b"\r\n", b"\r"])
def test_client_of_empty_lines_is_idle(make_harness: Callable[..., Harness], line: bytes) -> None:
    harness = make_harness(limits=HttpLimits(idle_timeout=10.0))
    client = harness.call()
    for _ in range(5):
        harness.loop.forward(1.8)
        client.send(b"\n" if client.buffered else line)
        assert not client.socket.closed
    harness.loop.forward(1.2)
    assert client.socket.closed


@pytest.mark.parametrize("pieces", [(b"\r\n", b""), (b"\r", b"\n"), (b"", b"\r\n")])
def test_client_sending_an_empty_line_first_has_the_normal_timeout(
    make_harness: Callable[..., Harness], pieces: tuple[bytes, bytes]
) -> None:
    harness = make_harness(limits=HttpLimits(idle_timeout=10.0))
    client = harness.call()
    harness.loop.forward(9)
    first, second = pieces
    client.send(first)
    client.send(second + ask_for("alice")[:20])
    harness.loop.forward(9)
    client.send(ask_for("alice")[20:])
    assert client.statuses == [200]


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "none"])
def test_client_that_half_closes_during_a_pause_gets_every_answer(
    make_harness: Callable[..., Harness], *, fast_path: bool
) -> None:
    """A half-close does not drop what was asked before it."""
    harness = make_harness(fast_path=fast_path)
    client = harness.ask(numbered("alice", 0))
    client.socket.reads = False
    client.send(b"".join(numbered("alice", number) for number in range(1, 500)))
    client.socket.end()
    harness.loop.settle()
    while not client.socket.closed:
        before = len(client.answers)
        client.socket.read_on()
        harness.loop.settle()
        client.socket.reads = False
        assert len(client.answers) > before
    assert ids(bytes(client.socket.sent)) == [*range(500)]
    assert client.socket.sent.count(b"\r\nConnection: close\r\n") == 1


def test_body_in_many_small_chunks_is_read_to_its_end(make_harness: Callable[..., Harness]) -> None:
    """Framing of several times the body's size, all at once, is no reason to stop reading."""
    harness = make_harness()
    head = numbered("alice", 0).partition(b"\r\n\r\n")[0]
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    body = b'{"input": "@alice"}'.ljust(14_000)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    request = b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", chunks])
    client = harness.call()
    client.socket.arrive(request[:83_000])
    harness.loop.settle()
    client.socket.arrive(request[83_000:])
    harness.loop.settle()
    assert client.statuses == [200]


def test_body_is_read_to_its_end_if_the_limit_sinks(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness(limits=HttpLimits(max_body=50_000))
    request = ask_for("alice", pad=40_000)
    client = harness.ask(request[:300])
    harness.server.replace(Serving(harness.app, reject, HttpLimits()))
    assert client.send(request[300:-9], request[-9:]).statuses == [200]


@pytest.mark.slow
def test_client_that_never_reads_is_closed_after_100_continue(
    make_harness: Callable[..., Harness],
) -> None:
    """Whatever fills its buffer first: a response, or the 25 bytes of "100 Continue"."""
    harness = make_harness()
    for padding in range(64):
        fields = b"Host: x\r\nExpect: 100-continue\r\nX-Request-ID: " + b"a" * (padding + 1)
        request = ask_for("alice").replace(b"Host: x", fields)
        client = harness.ask(request)
        client.socket.reads = False
        client.send(request * 100)
        harness.loop.forward(25)
        assert client.socket.lost

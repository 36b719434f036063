"""Whatever comes in and whatever happens: nothing breaks, and no client gets an excess response.

``HYPOTHESIS_EXAMPLES=1000000`` makes it as long as there is time for.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from support.http.in_process import HIGH_WATER, FakeClient, Harness, ask_for, harnesses
from support.http.raw_requests import CHUNKS, HOST, request
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.interfaces.shared import Purge

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "100"))
LIMITS = HttpLimits(max_body=1024, idle_timeout=3.0, body_timeout=2.0, max_connections=3)
MOST_BUFFERED = 16 * 1024 + 1024 + 256 * 1024
_STATUS = re.compile(rb"^HTTP/1\.1 ([2-5]\d\d) ", re.MULTILINE)
_HEAD = re.compile(rb"HTTP/1\.[01]\r\n")

WHOLE = st.sampled_from(
    [
        ask_for("alice"),
        ask_for("nobody"),
        ask_for("a b", key="B" * 40),
        ask_for("alice", b"Connection: close"),
        ask_for("alice", b"Expect: 100-continue"),
        ask_for("alice", version="1.0"),
        ask_for("alice", b"Upgrade: h2c", b"Connection: upgrade"),
        request(HOST, b"Transfer-Encoding: chunked", body=CHUNKS),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n",
    ]
)
PARTS = st.sampled_from(
    [
        b"POST ",
        b"/api/v1/identify/url",
        b"?a=b;",
        b" HTTP/1.1\r\n",
        b" HTTP/1.0\r\n",
        b"Host: x\r\n",
        b"Content-Length: 19\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: close\r\n",
        b"Connection: keep-alive, upgrade\r\n",
        b"X: " + b"y" * 9000 + b"\r\n",
        b"\r\n",
        b"\r",
        b"\n",
        b" ",
        b":",
        b"0\r\n\r\n",
        b"13\r\n",
        b"5;x=y\r\nhello\r\n",
        b"X-Trailer: y\r\n",
        b'{"input": "@alice"}',
    ]
)


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """A request with a few bytes taken out of it or put into it."""
    data = bytearray(draw(WHOLE))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(data)))
        data[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


@dataclass(frozen=True)
class Arrive:
    """Bytes come in, as one piece or as two; the loop is turned this often between."""

    data: bytes
    place: int
    turns: int

    def __call__(self, harness: Harness, client: FakeClient) -> None:
        place = self.place % (len(self.data) + 1)
        for piece in (self.data[:place], self.data[place:]):
            if piece:
                client.socket.arrive(piece)
            for _ in range(self.turns):
                harness.loop.turn()


@dataclass(frozen=True)
class Happen:
    """Something happens to the connection that is not bytes coming in."""

    name: str
    do: Callable[[Harness, FakeClient], object]

    def __call__(self, harness: Harness, client: FakeClient) -> None:
        self.do(harness, client)


def _stop_reading(_: Harness, client: FakeClient) -> None:
    client.socket.reads = False


def _drain(harness: Harness, _: FakeClient) -> None:
    harness.loop.create_task(harness.server.drain()).add_done_callback(lambda _: None)


HAPPENINGS = [
    Happen("settles", lambda harness, _: harness.loop.settle()),
    Happen("a second", lambda harness, _: harness.loop.forward(1.0)),
    Happen("too long", lambda harness, _: harness.loop.forward(3.5)),
    Happen("expires", lambda harness, client: harness.loop.call_soon(client.connection.on_timeout)),
    Happen("reads no more", _stop_reading),
    Happen("reads on", lambda _, client: client.socket.read_on()),
    Happen("ends", lambda _, client: client.socket.end()),
    Happen("vanishes", lambda _, client: client.socket.vanish()),
    Happen("purge", lambda harness, _: harness.cache.apply(Purge())),
]
LATE = [Happen("drain", _drain), Happen("stop", lambda harness, _: harness.server.close())]
BYTES = st.one_of(
    WHOLE,
    WHOLE,
    WHOLE.map(lambda data: data * 100),
    bent(),
    PARTS,
    st.lists(PARTS, min_size=2, max_size=8).map(b"".join),
    st.binary(max_size=20),
)
ARRIVALS = st.builds(Arrive, BYTES, st.integers(0, 300), st.integers(0, 4))
STEPS = st.lists(
    st.tuples(st.integers(0, 3), ARRIVALS | ARRIVALS | ARRIVALS | st.sampled_from(HAPPENINGS)),
    max_size=20,
)


class Watched:
    """A client, and what was recorded of it so far."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.client = harness.call()
        self.received = bytearray()
        take = self.client.connection.data_received

        def received(data: bytes) -> None:
            self.received += data
            take(data)

        self.client.connection.data_received = received  # type: ignore[method-assign]

    def check(self) -> int:
        """Holds what must hold at any time; gives how many answers there are."""
        socket = self.client.socket
        answers = len(_STATUS.findall(bytes(socket.sent)))
        asked = len(_HEAD.findall(bytes(self.received)))
        assert answers <= asked + 1  # a refusal may come for what never became a head
        assert socket.misuse == []
        assert self.client.buffered <= MOST_BUFFERED
        assert socket.most_waiting <= HIGH_WATER + 1024
        return answers


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=EXAMPLES)
@given(steps=STEPS, late=st.sampled_from([None, None, *LATE]), fast_path=st.booleans())
def test_random_input_gets_at_most_one_answer_per_request(
    *,
    steps: list[tuple[int, Callable[[Harness, FakeClient], None]]],
    late: Happen | None,
    fast_path: bool,
) -> None:
    with harnesses() as make:
        harness = make(limits=LIMITS, fast_path=fast_path)
        watched = [Watched(harness) for _ in range(4)]
        for number, step in steps:
            step(harness, watched[number].client)
            watched[number].check()
        if late is not None:
            late(harness, watched[0].client)
        for each in watched:
            each.client.socket.read_on()
        harness.loop.settle()
        begun = harness.app.asked
        total = sum(each.check() for each in watched)
        assert begun <= sum(len(_HEAD.findall(bytes(each.received))) for each in watched)
        event(f"answers: {min(total, 10)}")
        harness.loop.forward(8.0)
        assert all(each.client.socket.lost for each in watched)
        assert sum(each.check() for each in watched) <= total + len(watched)
        assert len(harness.server.connections) == 0

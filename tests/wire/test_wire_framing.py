"""One request in, one answer out: however its header is spelled, and its bytes are split."""

import os
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from tornado.web import Application, RequestHandler

from support.http.contract_values import TABLE
from support.http.framing_spellings import framing, sample, spellings
from support.http.http_server import ignore
from support.http.in_process import FakeClient, Harness, harnesses
from support.http.raw_requests import CHUNKS, HOST, LENGTH, request

pytestmark = pytest.mark.slow

HARD = "WIRE_HARD" in os.environ
GOOD = request(HOST, LENGTH, b"Content-Type: application/json")
SEED = 4
TIMES = 3
END = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
"""Follows each request, so that one that is read too far or too short is found out."""


class Recorder(RequestHandler):
    """Responds at once, and records the paths of its requests."""

    def initialize(self, asked: list[str]) -> None:
        self.asked = asked

    def post(self) -> None:
        self.asked.append(self.request.path)
        self.finish("{}")


def test_no_byte_around_the_coding_gets_a_request_two_answers() -> None:
    """Each is refused, or read in the one way that every strict reader reads it."""
    asked: list[str] = []
    app = Application([(".*", Recorder, {"asked": asked})], log_function=ignore)
    wrong = []
    seen: Counter[str] = Counter()
    with harnesses() as new_harness:
        harness = new_harness(app=app)
        for spelling in spellings() if HARD else sample():
            asked.clear()
            client = harness.ask(spelling.data)
            got = client.statuses, [*asked], client.socket.closed
            seen[framing(spelling.lines)] += 1
            if got != spelling.expected:
                wrong.append((spelling.lines, got, spelling.expected))
            client.socket.vanish()
    assert wrong == []
    assert seen.total() >= 6 * 257 * 7 * (3 if HARD else 1)
    assert min(seen.values()) > 5, seen


def cut(data: bytes, *places: int) -> list[bytes]:
    """The pieces between these places."""
    ends = [0, *sorted(places), len(data)]
    return [data[begin:end] for begin, end in pairwise(ends) if begin < end]


def heard(client: FakeClient) -> tuple[bytes, bool]:
    """What a client got, and whether that was the end."""
    return client.steady, client.socket.closed


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "none"])
def test_valid_request_split_anywhere_is_answered(
    make_harness: Callable[..., Harness], *, fast_path: bool
) -> None:
    """In chunks and by its length, alone and as the second on a connection."""
    harness = make_harness(fast_path=fast_path)
    for data in (GOOD, request(HOST, b"Transfer-Encoding: chunked", body=CHUNKS)):
        whole = harness.ask(data).steady
        assert whole.startswith(b"HTTP/1.1 200 OK\r\n")
        for place in range(1, len(data)):
            client = harness.ask(*cut(data, place))
            assert client.steady == whole, place
            assert client.send(*cut(data, place)).steady == whole * 2, place


@pytest.mark.parametrize("data", TABLE.values(), ids=TABLE)
def test_requests_split_in_three_places_get_the_same_responses(
    make_harness: Callable[..., Harness], data: bytes
) -> None:
    harness = make_harness()
    whole = heard(harness.ask(data, END))
    assert whole[1]
    chance = random.Random(f"{SEED} {data!r}")
    for _ in range(TIMES):
        places = [chance.randrange(1, len(data)) for _ in range(3)]
        assert heard(harness.ask(*cut(data, *places), END)) == whole, places
    assert heard(harness.ask(data + END)) == whole

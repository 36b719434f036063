"""One request in, one answer out: no spelling of a header makes two readers disagree."""

import os
from collections import Counter

import pytest
from tornado.web import Application, RequestHandler

from support.http.framing_spellings import framing, sample, spellings
from support.http.http_server import ignore
from support.http.in_process import harnesses

pytestmark = pytest.mark.slow

HARD = "WIRE_HARD" in os.environ


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

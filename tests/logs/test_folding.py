"""Repeated warnings and errors become one line per interval, with a count."""

import logging
from typing import Any

import pytest

from tornado_idv.logs.handlers import FoldingHandler

Written = tuple[str, int]


class Harness:
    """A handler with a clock that a test advances; ``written`` are events and their counts."""

    def __init__(self) -> None:
        self.now = 100.0
        self.written: list[Written] = []
        self.handler = FoldingHandler(self._write, lambda: self.now)

    def _write(self, fields: dict[str, Any]) -> None:
        self.written.append((fields["event"], fields.get("repeated", 0)))

    def log(self, event: str = "failed", *, times: int = 1, logger: str = "a") -> None:
        for _ in range(times):
            self.handler.handle(logging.LogRecord(logger, logging.WARNING, "", 0, event, (), None))

    def advance(self, seconds: float) -> list[Written]:
        """Let time pass, and return what is written in it or was before."""
        for _ in range(int(10 * seconds)):
            self.now = round(self.now + 0.1, 1)
            self.handler.expire()
        written, self.written = self.written, []
        return written


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_first_error_is_written_at_once_and_repetitions_after_10_s(harness: Harness) -> None:
    harness.log(times=4)
    assert harness.advance(9.9) == [("failed", 0)]
    assert harness.advance(0.2) == [("failed", 3)]
    assert harness.advance(100) == []


def test_lasting_error_is_one_line_per_10_s(harness: Harness) -> None:
    harness.log(times=2)
    written = []
    for _ in range(59):
        written += harness.advance(1)
        harness.log()
    assert written == [("failed", 0), *[("failed", 10)] * 5]
    assert harness.advance(11) == [("failed", 10)]


def test_single_errors_far_apart_are_each_written(harness: Harness) -> None:
    for _ in range(3):
        harness.log()
        assert harness.advance(10.1) == [("failed", 0)]


def test_different_texts_and_loggers_are_not_folded(harness: Harness) -> None:
    harness.log("one")
    harness.log("two")
    harness.log("one", logger="b")
    assert harness.advance(0) == [("one", 0), ("two", 0), ("one", 0)]


def test_each_error_has_its_own_interval(harness: Harness) -> None:
    harness.log("one", times=2)
    assert harness.advance(6) == [("one", 0)]
    harness.log("two", times=3)
    assert harness.advance(5) == [("two", 0), ("one", 1)]
    assert harness.advance(5) == [("two", 2)]


def test_repetitions_are_written_at_close(harness: Harness) -> None:
    harness.log(times=3)
    harness.handler.end_folds()
    assert harness.advance(100) == [("failed", 0), ("failed", 2)]


def test_memory_is_bounded_however_many_errors_there_are(harness: Harness) -> None:
    """The oldest is written early, with its count."""
    harness.log("failed", times=3)
    for number in range(1000):
        harness.log(f"error {number}")
    written = harness.advance(0)
    assert len(written) == 1002
    assert ("failed", 2) in written
    for number in reversed(range(1000)):
        harness.log(f"error {number}")
    assert harness.advance(0)[:2] == [("error 744", 1), ("error 743", 0)]  # 256 were known

"""A blocked event loop is logged with its stack, once, and again when it has ended."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from support.fakes.clock_and_backends import Ticker
from support.http.http_server import until
from support.processes.process import eventually
from tornado_idv.features.systemd import watchdog
from tornado_idv.features.systemd.watchdog import Watchdog, watched_loop
from tornado_idv.metrics.counters import Counters


class Watched:
    """A watchdog of this function, whose time a test moves."""

    def __init__(self) -> None:
        self.ticker = Ticker()
        self.watchdog = Watchdog(sys._getframe, self.ticker)
        self.next_check = self.ticker.now + watchdog._INTERVAL

    def forward(self, seconds: float, *, beating: bool) -> None:
        """Move the time in steps of 50 ms, with the checks that become due."""
        for _ in range(round(seconds / 0.05)):
            self.ticker.now += 0.05
            if beating:
                self.watchdog.beat()
            if self.ticker.now >= self.next_check:
                self.next_check = self.ticker.now + watchdog._INTERVAL
                self.watchdog.check()


def test_blocked_loop_is_logged_once_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.forward(10, beating=True)
    assert not caplog.records
    watched.forward(5, beating=False)
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith("event loop blocked for more than 1 s, in:\n  File ")
    assert "test_watchdog.py" in line.getMessage()


def test_end_of_a_block_is_logged_with_its_duration(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    for _ in range(2):
        caplog.clear()
        watched.forward(3, beating=True)
        watched.forward(4.95, beating=False)
        watched.forward(3, beating=True)
        assert [line.getMessage().partition(" in:")[0] for line in caplog.records] == [
            "event loop blocked for more than 1 s,",
            "event loop no longer blocked; it was for 5.0 s",
        ]


@pytest.mark.parametrize("offset", [0.0, 0.1, 0.2])
def test_block_just_over_a_second_is_logged_and_one_below_is_not(
    offset: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Whenever the last check was."""
    watched = Watched()
    watched.forward(5 + offset, beating=True)
    watched.forward(0.95, beating=False)
    watched.forward(1, beating=True)
    assert not caplog.records
    watched.forward(1.3, beating=False)
    assert "blocked for more than 1 s" in caplog.text


def test_process_that_was_stopped_has_no_blocking_stack(caplog: pytest.LogCaptureFixture) -> None:
    """The watching thread did not run either; what the loop executes now is not the cause."""
    watched = Watched()
    watched.forward(3, beating=True)
    watched.ticker.now += 60
    watched.watchdog.check()
    watched.watchdog.beat()
    watched.forward(1.3, beating=False)
    ended, blocked = (line.getMessage() for line in caplog.records)
    assert ended == "event loop no longer blocked; it was for 60.0 s"
    assert blocked.startswith("event loop blocked for more than 1 s, in:")


async def test_running_loop_is_watched_from_another_thread(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stack names the function that blocks, and no value of its variables."""
    monkeypatch.setattr(watchdog, "_LIMIT", 0.05)
    card_number = "4000" * 4

    def block(card_number: str) -> None:
        eventually(lambda: "in block\n" in caplog.text)

    counters = Counters()
    with watched_loop(counters):
        block(card_number)
        await until(lambda: counters.max_lag > 0)
    assert caplog.records[0].name == "tornado_idv.features.systemd.watchdog"
    assert card_number not in caplog.text


async def test_watching_ends_with_the_service() -> None:
    with watched_loop(Counters()):
        (thread,) = [each for each in threading.enumerate() if each.name == "watchdog"]
        assert thread.daemon
    assert not thread.is_alive()

"""The lag of the event loop is measured, and one of more than a second is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tornado_idv.metrics.counters import Counters
from tornado_idv.service.loop_lag import measured_lag


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose time is that of a test, and whose timers are called by it."""

    now = 100.0

    def time(self) -> float:
        return self.now

    def run_until(self, at: float) -> None:
        """Run what is due at this time."""
        self.now = at
        self.run_until_complete(asyncio.sleep(0))
        self.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def loop() -> Iterator[_Loop]:
    loop = _Loop()
    yield loop
    loop.close()


def test_longest_lag_is_counted_and_a_blocked_loop_is_logged(
    loop: _Loop, caplog: pytest.LogCaptureFixture
) -> None:
    counters = Counters()

    async def measure() -> None:
        with measured_lag(counters):
            await ended.wait()

    ended = asyncio.Event()
    task = loop.create_task(measure())
    loop.run_until(100.0)
    loop.run_until(100.4)
    assert counters.max_lag == pytest.approx(0.3)
    loop.run_until(101.49)
    assert counters.max_lag == pytest.approx(0.99)
    assert not caplog.records
    loop.run_until(104.59)
    assert counters.take_max_lag() == pytest.approx(3.0)
    loop.run_until(104.69)
    assert counters.max_lag < 0.01
    assert [each.getMessage() for each in caplog.records] == ["event loop was blocked for 3.0 s"]
    ended.set()
    loop.run_until_complete(task)
    loop.run_until(110.0)
    assert counters.max_lag < 0.01  # nothing is measured after the end

"""The lag of the event loop is measured, and one of more than a second is logged."""

import pytest

from support.fakes.clock_and_backends import LoopClock
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.part import background
from tornado_idv.service.run import measure_lag


async def test_longest_lag_is_counted_and_a_blocked_loop_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counters, clock = Counters(), LoopClock()
    clock.stop()
    async with background(measure_lag(counters)):
        await clock.advance(0.0)  # the task starts
        await clock.advance(0.4)
        assert counters.max_lag == pytest.approx(0.3)
        await clock.advance(1.09)
        assert counters.max_lag == pytest.approx(0.99)
        assert not caplog.records
        await clock.advance(3.1)
        assert counters.take_max_lag() == pytest.approx(3.0)
        await clock.advance(0.1)
        assert counters.max_lag < 0.01
    assert caplog.messages == ["event loop was blocked for 3.0 s"]
    await clock.advance(10.0)
    assert counters.max_lag < 0.01  # nothing is measured after the end

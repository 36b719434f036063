"""The table of connections."""

from math import inf
from typing import Any

from support.fakes.stepped_loop import SteppedLoop
from tornado_idv.http.connection_table import ConnectionTable, HttpLimits, State


class Timed:
    deadline = 0.0
    state = State.IDLE

    def __init__(self, error: Exception | None = None) -> None:
        self.timeouts = 0
        self.is_aborted = False
        self._error = error
        self.spared: list[Timed] = []

    def on_timeout(self) -> None:
        self.timeouts += 1
        for each in self.spared:
            each.deadline = inf
        if self._error is not None:
            raise self._error

    def update_serving(self) -> None: ...

    def drain(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


def test_error_of_one_connection_does_not_end_the_timeouts_of_others() -> None:
    loop = SteppedLoop()
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    table = ConnectionTable(loop, HttpLimits())
    bad, good, late = Timed(RuntimeError()), Timed(), Timed()
    good.spared = [late]  # as by a request that arrives during the sweep
    for each in (bad, good, late):
        table.register(each)
    loop.forward(1.0)
    table.close()
    loop.close()
    assert len(errors) >= 2
    assert (good.timeouts >= 2, late.timeouts) == (True, 0)


def test_connections_that_replace_others_are_no_more_than_the_limit() -> None:
    """Those that were replaced count for nothing, before and after they have closed."""
    loop = SteppedLoop()
    table = ConnectionTable(loop, HttpLimits(max_connections=2, replace_idle=True))
    connections = [Timed() for _ in range(7)]
    for each in connections[:4]:
        assert table.register(each)
    for each in connections[:2]:
        table.unregister(each)
    for each in connections[4:]:
        assert table.register(each)
    assert [each.is_aborted for each in connections] == [True] * 5 + [False] * 2
    table.close()
    loop.close()

"""Positions in the WAL: when a standby follows its primary, with a clock."""

from typing import Any

import pytest

from idv_postgres.database import Executor
from idv_postgres.options import PostgresOptions
from idv_postgres.standby import Standbys

MAY_BE_BEHIND = "may be behind by more than max_lag"
NO_WAL = "receives no WAL"
ROW = ("Free", "1", "alice", None, None)


class Harness:
    """Statements on a standby, a quarter of a second apart; positions are numbers."""

    def __init__(self) -> None:
        self.now = 100.0
        self.standbys = Standbys(1.0, lambda: self.now)

    def look_up(
        self,
        replayed: int,
        received: int | None,
        *,
        receiver: str | None = "7",
        server: str = "monday",
        after: float = 0.25,
    ) -> Any:
        self.now += after
        lsn = None if received is None else f"0/{received:X}"
        state = (receiver, f"0/{replayed:X}", lsn, None, server)
        return self.standbys.finish(self.standbys.start(), [ROW, state])

    def settle(self, position: int = 100, **state: Any) -> None:
        """Follow the primary for some time."""
        for _ in range(8):
            result = self.look_up(position, position, **state)
        assert result.reason is None


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_state_is_no_row_of_the_result(harness: Harness) -> None:
    assert harness.look_up(1, 1).rows == [ROW[:-1]]
    result = harness.standbys.finish(harness.standbys.start(), [(None,) * 5])
    assert (result.rows, result.reason, result.standby) == ([(None,) * 4], None, None)


def test_receiver_that_has_just_connected_says_nothing_for_a_second(harness: Harness) -> None:
    reasons = [harness.look_up(100, 100).reason for _ in range(5)]
    assert reasons == [MAY_BE_BEHIND] * 4 + [None]
    for other in ({"receiver": "8"}, {"server": "tuesday", "receiver": "8"}):
        harness.now += 2
        assert harness.look_up(100, 100, **other).reason == MAY_BE_BEHIND
        harness.settle(**other)


def test_lag_is_that_of_what_was_received_at_most_max_lag_ago(harness: Harness) -> None:
    harness.settle()
    for step in range(10):  # 0.5 s behind
        assert harness.look_up(100 + 10 * max(0, step - 2), 100 + 10 * step).reason is None
    reasons = [harness.look_up(170, 190 + 10 * step).reason for step in range(1, 9)]
    assert reasons[0] is None
    assert reasons[-4:] == [MAY_BE_BEHIND] * 4


def test_position_that_is_younger_than_the_statement_counts_for_the_next_one(
    harness: Harness,
) -> None:
    harness.settle()
    for _ in range(5):
        harness.look_up(100, 500)
    caught_up = harness.look_up(500, 500)
    assert (caught_up.reason, caught_up.may_repeat) == (MAY_BE_BEHIND, True)
    assert harness.look_up(500, 500, after=0).reason is None


def test_standby_without_a_receiver_is_believed_for_max_lag(harness: Harness) -> None:
    harness.settle()
    first, second, *_, last = (harness.look_up(100, 100, receiver=None) for _ in range(6))
    assert (first.reason, first.may_repeat) == (NO_WAL, True)  # it may have restarted
    assert (second.reason, last.reason) == (None, NO_WAL)


@pytest.mark.parametrize("received", [None, 90], ids=["nothing", "the start of a segment"])
def test_receiver_without_wal_yet_is_not_believed(harness: Harness, received: int | None) -> None:
    assert {harness.look_up(100, received).reason for _ in range(20)} == {MAY_BE_BEHIND}


def test_standby_is_compared_with_what_another_one_has_received(harness: Harness) -> None:
    harness.settle(500)
    other = {"server": "tuesday", "receiver": "9"}
    assert {harness.look_up(100, 100, **other).reason for _ in range(3)} == {MAY_BE_BEHIND}


def test_standby_that_receives_late_does_not_lower_what_others_need(harness: Harness) -> None:
    """Two respond in turn, and the second one has received less for longer than max_lag."""
    late = {"server": "tuesday", "receiver": "9"}
    harness.settle(200)
    for _ in range(10):
        assert harness.look_up(200, 200).reason is None
        assert harness.look_up(150, 150, **late).reason == MAY_BE_BEHIND


@pytest.mark.parametrize(
    ("required", "replayed"), [("0/64", 100), ("0/2018", 8192), ("1/28", 1 << 32), ("0/2019", 8217)]
)
def test_answers_are_stored_when_the_required_position_was_replayed_before(
    harness: Harness, required: str, replayed: int
) -> None:
    """The header of an empty page is not replayed."""
    harness.settle(1)
    harness.standbys.require(required)
    for position, expected in ((replayed - 1, False), (replayed, False), (replayed, True)):
        lsn = f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
        state = ("7", lsn, lsn, None, "monday")
        result = harness.standbys.finish(harness.standbys.start(), [state])
        assert result.storable is expected
    harness.standbys.require(None)
    assert not harness.look_up(1 << 40, 1 << 40).storable


def test_state_is_certain_for_a_moment_and_until_a_change_is_notified(harness: Harness) -> None:
    harness.settle()
    standby = harness.look_up(100, 100).standby
    assert harness.standbys.is_certain(standby)
    assert not harness.standbys.is_certain(None)
    harness.standbys.require(None)
    assert not harness.standbys.is_certain(standby)
    harness.standbys.require("0/64")
    assert harness.standbys.is_certain(standby)
    harness.now += 0.05
    assert not harness.standbys.is_certain(standby)


class Pooled:
    """A connection to a pooler, which passes each statement to the next of two standbys."""

    address, server, standby = "127.0.0.1:6432", "", object()

    def __init__(self) -> None:
        self.states = [("7", "0/64", "0/64", None, "monday"), ("7", "0/1", "0/1", None, "tuesday")]

    async def execute(self, sql: str) -> None:
        assert sql.startswith(("BEGIN", "COMMIT"))

    async def fetch(self, sql: str, value: str, timeout: float | None) -> list[Any]:  # noqa: ASYNC109
        return [self.states.pop(0)] if "pg_is_in_recovery" in sql else []


async def test_each_standby_behind_a_pooler_is_checked(harness: Harness) -> None:
    harness.settle()
    dsn = "postgresql://pooler/users"
    options = PostgresOptions(name="users", kind="postgres", dsn=dsn, prepared_statements=False)
    executor, connection = Executor(options), Pooled()
    executor.standbys = harness.standbys
    results = [await executor.run(connection, "SELECT", "bob") for _ in range(2)]
    for _ in range(5):
        harness.look_up(100, 500)
    connection.states = [("7", "0/1F4", "0/1F4", None, "monday")] * 2
    results.append(await executor.run(connection, "SELECT", "bob"))  # caught up meanwhile
    assert [each.reason is None for each in results] == [True, False, True]

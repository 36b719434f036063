"""Standbys, whose data may be old: a user who is missing there may be on the primary.

A lookup on a standby also returns positions in the WAL, unless one did just before. They are
younger than the snapshot of their own statement. So they limit the age of data for the next
statement, not for their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any, ClassVar, TypeAlias

from idv_postgres.lookups import Result

_STATE = """
SELECT {place}(pg_catalog.pg_stat_get_wal_receiver()).pid::text,
  pg_catalog.pg_last_wal_replay_lsn()::text, pg_catalog.pg_last_wal_receive_lsn()::text,
  NULL::text, pg_catalog.pg_postmaster_start_time()::text
WHERE pg_catalog.pg_is_in_recovery()
"""
"""A row behind those of a lookup; its last column is NULL in every other row.

Any role may read it. The replayed position is read before the received one, and is above it only
if the WAL receiver has received nothing yet."""
NO_LOOKUP = "SELECT $1::text, NULL, NULL, NULL LIMIT 0"
"""A statement for the state alone."""
_MAX_STANDBYS = 100
_MOMENT = 1 / 32
"""The fraction of ``max_lag`` for which a state is used again."""
_PAGE_SIZE, _PAGE_HEADERS = 8192, (24, 40)
_Start: TypeAlias = "tuple[float, Mapping[object, tuple[float, int]]]"


@lru_cache(maxsize=16)
def with_state(sql: str, *, is_batch: bool) -> str:
    """Add the state of a standby to a lookup, or to a batch, whose first column is a number."""
    state = _STATE.format(place="NULL::bigint, " if is_batch else "")
    return f"SELECT q.*, NULL::text FROM (\n{sql}\n) AS q UNION ALL {state}"  # noqa: S608 - constants


class Standbys:
    """Positions of standbys.

    A standby *follows* its primary if its data is at most ``max_lag`` seconds old: it has replayed
    the position up to which a standby had received WAL ``max_lag`` seconds before, or a later one.
    """

    settle_time: ClassVar[float] = 1.0
    """Seconds for a new WAL receiver to catch up; its position does not count before."""

    def __init__(self, max_lag: float, timer: Callable[[], float] = time.monotonic) -> None:
        self._max_lag, self._timer = max_lag, timer
        self._replayed: Mapping[object, tuple[float, int]] = {}
        """The time when each standby was first seen, and its last position."""
        self._received: list[tuple[float, int]] = []
        """The received positions of the last ``max_lag`` seconds, each with its time."""
        self._required: float = 0
        self._certain: tuple[object, float, int] = None, -inf, 0

    def require(self, position: str | None) -> None:
        """Make results storable from this position on. With ``None``, no result is storable."""
        required = inf if position is None else _to_bytes(position)
        # An idle standby stops before the header of a page that is empty otherwise.
        is_empty = required % _PAGE_SIZE in _PAGE_HEADERS
        self._required = required - required % _PAGE_SIZE if is_empty else required

    def is_certain(self, standby: object) -> bool:
        """Return whether this standby followed just now, so that a lookup needs no state."""
        certain, until, position = self._certain
        return standby == certain and self._timer() < until and position >= self._required

    def start(self) -> _Start:
        """Return the input of `finish` from before a statement is sent."""
        return self._timer(), self._replayed

    def finish(self, start: _Start, rows: list[Sequence[Any]]) -> Result:
        """Return the result of a statement `with_state`, and keep the state."""
        state = rows.pop() if rows and rows[-1][-1] is not None else None
        rows = [row[:-1] for row in rows]
        if state is None:
            return Result(rows)
        sent, replayed_before = start
        receiver, started = state[-5], state[-1]
        replayed, received = map(_to_bytes, state[-4:-2])
        # A receiver that connects again may have another primary.
        standby = started, receiver
        since = self._keep_replayed(standby, sent, replayed)
        if receiver is not None and sent >= since + self.settle_time and received >= replayed:
            self._keep_received(sent, received)
        self._received = [each for each in self._received if each[0] >= sent - self._max_lag]
        # Without a position nothing is known of the primary: no standby follows then.
        needed = self._received[0][1] if self._received else inf
        # The snapshot may be older than `replayed`, but not than the position before the statement.
        _, known = replayed_before.get(standby, (sent, -1))
        reason = None
        if known >= needed:
            self._certain = standby, sent + self._max_lag * _MOMENT, known
        else:
            reason = "receives no WAL" if receiver is None else "may be behind by more than max_lag"
        return Result(rows, reason, known >= self._required, standby, known < needed <= replayed)

    def _keep_replayed(self, standby: object, sent: float, position: int) -> float:
        """Return the time when this standby was first seen."""
        since, _ = self._replayed.get(standby, (sent, 0))
        others = self._replayed if len(self._replayed) < _MAX_STANDBYS else {}
        # Another mapping each time, because statements on their way keep that of their start.
        self._replayed = {**others, standby: (since, position)}
        return since

    def _keep_received(self, sent: float, position: int) -> None:
        last, highest = self._received[-1] if self._received else (-inf, 0)
        # Of several standbys the one that has received most is closest to the primary.
        if sent >= last + self._max_lag * _MOMENT and position >= highest:
            self._received.append((sent, position))


def _to_bytes(position: str | None) -> int:
    """Return a position in the WAL as a number, and -1 for none."""
    if position is None:
        return -1
    high, low = position.split("/")
    return (int(high, 16) << 32) + int(low, 16)

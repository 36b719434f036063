"""The check whether "not found" from a standby is reliable. The data of a standby may be old.

A lookup on a standby also returns WAL positions, unless the last positions are recent. A statement
takes its snapshot before it reads the positions. So its own data may be older than the positions,
but the data of the next statement is not.
"""

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
"""SELECT of a standby's state as the last row of a lookup. Other rows have NULL in the last column.

Any role may run this SELECT. It reads the replayed position first. If this position still exceeds
the received position, the WAL receiver has received nothing yet."""
NO_LOOKUP = "SELECT $1::text, NULL, NULL, NULL LIMIT 0"
"""SQL of a lookup without rows. Extended by `with_state`, it returns only the standby's state."""
_MAX_STANDBYS = 100
_PAGE_SIZE, _PAGE_HEADERS = 8192, (24, 40)
_Start: TypeAlias = "tuple[float, Mapping[object, tuple[float, int]]]"


@lru_cache(maxsize=16)
def with_state(sql: str, *, is_batch: bool) -> str:
    """Return SQL that adds a row with the standby's state to a lookup, or to a batch of lookups."""
    state = _STATE.format(place="NULL::bigint, " if is_batch else "")
    return f"SELECT q.*, NULL::text FROM (\n{sql}\n) AS q UNION ALL {state}"  # noqa: S608 - constants


class Standbys:
    """The WAL positions of standbys.

    A standby *follows* its primary if its data is at most ``max_lag`` seconds old. This is true if
    the standby has replayed the highest position that any standby had received ``max_lag`` ago.
    """

    settle_time: ClassVar[float] = 1.0
    """Seconds for a new WAL receiver to catch up. Meanwhile, its received position is ignored."""

    def __init__(self, max_lag: float, timer: Callable[[], float] = time.monotonic) -> None:
        self._max_lag, self._moment, self._timer = max_lag, max_lag / 32, timer
        """``_moment`` is the time in seconds for which a state is reused."""
        self._replayed: Mapping[object, tuple[float, int]] = {}
        """For each standby, the time when it was first seen, and its last replayed position."""
        self._received: list[tuple[float, int]] = []
        """Pairs of a time and a received position, of the last ``max_lag`` seconds."""
        self._required: float = 0
        self._certain: tuple[object, float, int] = None, -inf, 0

    def require(self, position: str | None) -> None:
        """Set the replayed WAL position that a cached result needs. ``None`` prevents caching."""
        required = inf if position is None else _to_bytes(position)
        # An idle standby stops before the header of a page without other contents.
        is_empty = required % _PAGE_SIZE in _PAGE_HEADERS
        self._required = required - required % _PAGE_SIZE if is_empty else required

    def is_certain(self, standby: object) -> bool:
        """Return whether a standby *followed* recently. Then its next lookup reads no positions."""
        certain, until, position = self._certain
        return standby == certain and self._timer() < until and position >= self._required

    def start(self) -> _Start:
        """Call this before a statement is sent, and pass the returned value to `finish`."""
        return self._timer(), self._replayed

    def finish(self, start: _Start, rows: list[Sequence[Any]]) -> Result:
        """Record the state at the end of ``rows``, if any, and return the result of the lookup."""
        state = rows.pop() if rows and rows[-1][-1] is not None else None
        rows = [row[:-1] for row in rows]
        if state is None:
            return Result(rows)
        sent, replayed_before = start
        receiver, started = state[-5], state[-1]
        replayed, received = map(_to_bytes, state[-4:-2])
        # After a new connection, the receiver may follow another primary.
        standby = started, receiver
        since, _ = self._replayed.get(standby, (sent, 0))
        others = self._replayed if len(self._replayed) < _MAX_STANDBYS else {}
        # This creates a new mapping, because running statements keep the mapping of their start.
        self._replayed = {**others, standby: (since, replayed)}
        last, highest = self._received[-1] if self._received else (-inf, 0)
        is_settled = receiver is not None and sent >= since + self.settle_time
        # The standby that has received most is the closest to the primary.
        if is_settled and received >= max(replayed, highest) and sent >= last + self._moment:
            self._received.append((sent, received))
        self._received = [each for each in self._received if each[0] >= sent - self._max_lag]
        # Without a received position, nothing is known of the primary, and no standby follows.
        needed = self._received[0][1] if self._received else inf
        # The snapshot may be older than `replayed`, but not older than the previous position.
        _, known = replayed_before.get(standby, (sent, -1))
        reason = None
        if known >= needed:
            self._certain = standby, sent + self._moment, known
        else:
            reason = "receives no WAL" if receiver is None else "may be behind by more than max_lag"
        return Result(rows, reason, known >= self._required, standby, known < needed <= replayed)


def _to_bytes(position: str | None) -> int:
    """Return a WAL position as a number, or -1 without a position."""
    if position is None:
        return -1
    high, low = position.split("/")
    return (int(high, 16) << 32) + int(low, 16)

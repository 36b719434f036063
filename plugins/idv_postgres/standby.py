"""Standbys, whose answers may be old: a user that one lacks may be on the primary.

A lookup on a standby also returns positions in the WAL, unless one did just before. They are
younger than the snapshot of their own statement, so they say how old the data is that the next one
reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any, ClassVar, NamedTuple, TypeAlias

_STATE = """
SELECT {place}(pg_catalog.pg_stat_get_wal_receiver()).pid::text,
  pg_catalog.pg_last_wal_replay_lsn()::text, pg_catalog.pg_last_wal_receive_lsn()::text,
  NULL::text, pg_catalog.pg_postmaster_start_time()::text
WHERE pg_catalog.pg_is_in_recovery()
"""
"""A row for the result of a lookup, the last column of which is NULL in each other one.

Any role may read it. The replayed position is read before the received one, so that it is above
that only if the WAL receiver has received nothing yet."""
NO_LOOKUP = "SELECT $1::text, NULL, NULL, NULL LIMIT 0"
"""A statement for the state alone."""
_MAX_SERVERS = 100
_PAGE_SIZE, _PAGE_HEADERS = 8192, (24, 40)
_Start: TypeAlias = "tuple[float, Mapping[object, tuple[float, int]]]"


class Result(NamedTuple):
    """The rows of a lookup; with a ``reason`` none of them does not mean "not found"."""

    rows: Sequence[Sequence[Any]]
    reason: str | None = None
    storable: bool = True
    """Whether it is as new as the last change that was notified."""
    server: object = None
    """The standby, or ``None`` for a primary."""
    may_repeat: bool = False
    """Whether a repeated lookup has no reason any more."""
    address: str = ""
    origin: str = ""
    """`Connection.address` and `Connection.server`."""


@lru_cache(maxsize=16)
def with_state(sql: str, *, is_batch: bool) -> str:
    """Add the state of a standby to a lookup, or to a batch, whose first column is a number."""
    state = _STATE.format(place="NULL::bigint, " if is_batch else "")
    return f"SELECT q.*, NULL::text FROM (\n{sql}\n) AS q UNION ALL {state}"  # noqa: S608 - constants


class Standbys:
    """Positions of standbys, by server and WAL receiver.

    A standby *follows* its primary if it has replayed what a standby had received ``max_lag``
    seconds before, or later.
    """

    settle_time: ClassVar[float] = 1.0
    """Seconds that a WAL receiver has to receive what it missed; before, its position is none."""

    def __init__(self, max_lag: float, timer: Callable[[], float] = time.monotonic) -> None:
        self._max_lag, self._timer = max_lag, timer
        self._replayed: Mapping[object, tuple[float, int]] = {}
        self._received: list[tuple[float, int]] = []
        self._required: float = 0
        self._certain: tuple[object, float, int] = None, -inf, 0

    def require(self, position: str | None) -> None:
        """Let nothing be stored of what a standby returns before it has replayed this position.

        Without one nothing at all.
        """
        required = inf if position is None else _to_bytes(position)
        # An idle standby stops before the header of a page that is empty otherwise.
        is_empty = required % _PAGE_SIZE in _PAGE_HEADERS
        self._required = required - required % _PAGE_SIZE if is_empty else required

    def is_certain(self, server: object) -> bool:
        """Return whether this standby followed just now, so that a lookup needs no state."""
        certain, until, position = self._certain
        return server == certain and self._timer() < until and position >= self._required

    def start(self) -> _Start:
        """Return what `finish` needs from before a statement is sent."""
        return self._timer(), self._replayed

    def finish(self, start: _Start, rows: list[Sequence[Any]]) -> Result:
        """Return the result of a statement `with_state`, and remember the state."""
        state = rows.pop() if rows and rows[-1][-1] is not None else None
        rows = [row[:-1] for row in rows]
        if state is None:
            return Result(rows)
        sent, before = start
        receiver, replayed, received = state[-5], *map(_to_bytes, state[-4:-2])
        server = (state[-1], receiver)
        since, _ = self._replayed.get(server, (sent, 0))
        others = self._replayed if len(self._replayed) < _MAX_SERVERS else {}
        self._replayed = {**others, server: (since, replayed)}
        last, least = self._received[-1] if self._received else (-inf, 0)
        has_settled = sent >= max(since + self.settle_time, last + self._max_lag / 32)
        if receiver is not None and has_settled and received >= max(replayed, least):
            self._received.append((sent, received))
        self._received = [each for each in self._received if each[0] >= sent - self._max_lag]
        needed = self._received[0][1] if self._received else inf
        _, known = before.get(server, (sent, -1))
        reason = None
        if known >= needed:
            self._certain = server, sent + self._max_lag / 32, known
        else:
            reason = "receives no WAL" if receiver is None else "may be behind by more than max_lag"
        may_repeat = known < needed <= replayed
        return Result(rows, reason, known >= self._required, server, may_repeat)


def _to_bytes(position: str | None) -> int:
    """Return a position in the WAL as a number, -1 if there is none."""
    if position is None:
        return -1
    high, low = position.split("/")
    return (int(high, 16) << 32) + int(low, 16)

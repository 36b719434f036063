"""Whether and when an upstream may be asked once more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"[0-9]{1,9}", re.ASCII)

# In fifths of a repetition, since each request earns one.
_PRICE = 5
_MOST = 10 * _PRICE


class RetryBudget:
    """Lets one request in five be repeated, and ten at once after a quiet time.

    A directory that fails for everybody is so not asked twice as much as ever just
    when it can bear it least.
    """

    def __init__(self) -> None:
        self._left = _MOST

    def earn(self) -> None:
        """A request was made."""
        if self._left < _MOST:
            self._left += 1

    def spend(self) -> bool:
        """Whether one request may be repeated; then it is counted."""
        if self._left < _PRICE:
            return False
        self._left -= _PRICE
        return True


def seconds_to_wait(headers: Mapping[str, str]) -> float:
    """How long ``Retry-After`` asks to wait; 0 if it does not, or not in a way that is known."""
    wanted = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(wanted):
        return float(wanted)
    until = _moment(wanted)
    if until is None:
        return 0.0
    # By the clock that the date was written by, if it is told: ours may go wrong.
    now = _moment(headers.get("Date", "")) or datetime.now(UTC)
    return max((until - now).total_seconds(), 0.0)


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

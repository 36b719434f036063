"""Retries of requests: their conditions, pauses and budget."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"[0-9]{1,9}", re.ASCII)

# In fifths of a retry, since each request earns one.
_PRICE = 5
_MAX = 10 * _PRICE


class RetryBudget:
    """Allows one retry for five requests, and a burst of ten after a quiet time.

    Without it, an upstream that fails for every request would get twice the usual load
    when it can bear it least.
    """

    def __init__(self) -> None:
        self._left = _MAX

    def earn(self) -> None:
        """Count a request."""
        if self._left < _MAX:
            self._left += 1

    def spend(self) -> bool:
        """Return whether one request may be repeated; then the retry is counted."""
        if self._left < _PRICE:
            return False
        self._left -= _PRICE
        return True


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that ``Retry-After`` asks to wait (RFC 9110, section 10.2.3); 0 if unknown."""
    value = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    until = _date(value)
    if until is None:
        return 0.0
    # By the clock of the upstream, if it sends its time: ours may be wrong.
    now = _date(headers.get("Date", "")) or datetime.now(UTC)
    return max((until - now).total_seconds(), 0.0)


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)

"""One limit, and what it says of a request that exceeds it."""

from __future__ import annotations

import math

from msgspec import Struct

from tornado_idv.units import Rate


class Limit:
    """A named rate; an event is allowed while its TAT is at most ``tolerance`` ahead.

    ``interval`` and ``tolerance`` are in seconds.
    """

    __slots__ = ("interval", "name", "rate", "tolerance")

    def __init__(self, name: str, rate: Rate) -> None:
        self.name = name
        self.rate = rate
        self.interval = rate.seconds / rate.count
        self.tolerance = self.interval * (rate.count - 1)

    def exceeded(self, tat: float, now: float) -> Exceeded | None:
        """Return by how much a further event would exceed the limit, if it would."""
        wait = tat - self.tolerance - now
        return Exceeded(self, wait) if wait > 0 else None


class Exceeded(Struct, frozen=True):
    """The limit that a request exceeds; the next one is allowed in ``wait`` seconds."""

    limit: Limit
    wait: float

    @property
    def retry_after(self) -> int:
        """The wait in whole seconds, rounded up."""
        return math.ceil(self.wait)

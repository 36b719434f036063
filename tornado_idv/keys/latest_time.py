"""The latest wall time that a service has seen."""

from __future__ import annotations

import math
from mmap import mmap


class LatestTime:
    """The latest wall time that any process of a service has seen.

    ``seconds`` holds that one number, in Unix time; minus infinity before a time was seen. It is in
    memory that processes forked later share, and outlives each of them. They change it without a
    lock: of two simultaneous changes, the one by the earlier time may remain.
    """

    def __init__(self) -> None:
        self.seconds = memoryview(mmap(-1, 8)).cast("d")
        self.seconds[0] = -math.inf

    def advance(self, now: float) -> float:
        """Return the later of this and ``now``, which is the latest time from now on."""
        self.seconds[0] = latest = max(now, self.seconds[0])
        return latest

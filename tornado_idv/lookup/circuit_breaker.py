"""A circuit breaker: after repeated failures, calls to a backend are rejected for a while.

After a number of consecutive failures, the circuit *opens* and rejects every call for some time.
Then it lets one call at a time through as a probe. A successful probe closes the circuit. A failed
probe opens it again for twice the time. Callers must report the end of each call.
"""

import random
import time
from collections.abc import Callable
from typing import Literal

from tornado_idv.interfaces.backend import BreakerOptions

_JITTER = 0.2  # processes whose circuits opened together probe at different times
BreakerState = Literal["closed", "half_open", "open"]
"""``closed`` lets all calls through, ``half_open`` one call as a probe, and ``open`` no call."""
Permit = Literal["regular", "probe"]
"""The permission to make one call. The result of the call must be reported."""


class CircuitBreaker:
    """The circuit of a backend. ``timer`` returns seconds, ``chance`` numbers from 0 to 1."""

    def __init__(
        self,
        options: BreakerOptions,
        timer: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._options = options
        self._timer = timer
        self._chance = chance
        self.failures = 0
        """Consecutive failures, including the one that opened the circuit."""
        self._period = options.open_for
        self._open_until: float | None = None
        self._probing = False

    @property
    def state(self) -> BreakerState:
        """The current state. An open circuit becomes ``half_open`` when its time is over."""
        if self._open_until is None:
            return "closed"
        return "open" if self.next_probe else "half_open"

    @property
    def next_probe(self) -> float:
        """Seconds until an open circuit lets a probe through, otherwise 0."""
        return 0.0 if self._open_until is None else max(self._open_until - self._timer(), 0.0)

    def try_acquire(self) -> Permit | None:
        """Return a permit for one call, or ``None`` if the circuit rejects the call."""
        if self._open_until is None:
            return "regular"
        if self._probing or self._timer() < self._open_until:
            return None
        self._probing = True
        return "probe"

    def succeeded(self, permit: Permit) -> None:
        """Report that the backend responded to a call, with any result."""
        if permit == "probe":
            self.close()
        # A regular call may have begun before the circuit opened: only a probe closes it.
        elif self._open_until is None:
            self.failures = 0

    def close(self) -> None:
        self._probing = False
        self._open_until = None
        self._period = self._options.open_for
        self.failures = 0

    def failed(self, permit: Permit) -> bool:
        """Report a failed call; return whether it opened the circuit."""
        if permit == "probe":
            self._probing = False
            self._period = min(self._period * 2, self._options.open_max)
        elif self._open_until is not None:
            return False  # the call began before the circuit opened
        self.failures += 1
        if permit == "regular" and self.failures < self._options.failures:
            return False
        jitter = 1 + _JITTER * (2 * self._chance() - 1)
        self._open_until = self._timer() + self._period * jitter
        return True

    def retry(self) -> None:
        """End the wait of an open circuit, so that the next call probes the backend."""
        if self._open_until is not None:
            self._open_until = self._timer()

    def abandoned(self, permit: Permit) -> None:
        """Report a call without a result: the caller left, or the backend was not called."""
        if permit == "probe":
            self._probing = False

"""A circuit breaker: a backend that keeps failing is left alone for a while.

After enough failures in a row the circuit *opens*, and nobody asks. When its time is over,
one caller at a time probes: a probe that succeeds closes the circuit, one that fails opens
it again for twice as long. Successes and failures are told by whoever asked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

_SPREAD = 0.2


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """Failures in a row that open the circuit; seconds it stays open, at first and at most."""

    failures: int = 5
    open_for: float = 5.0
    open_max: float = 60.0


class Pass(Enum):
    """What a caller is let through as."""

    REGULAR = auto()
    PROBE = auto()


class Breaker:
    """One circuit. ``timer`` gives seconds; ``chance`` gives numbers from 0 to 1."""

    def __init__(
        self,
        limits: BreakerLimits,
        timer: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._limits = limits
        self._timer = timer
        self._chance = chance
        self._failures = 0
        self._period = limits.open_for
        self._open_until: float | None = None
        self._probing = False

    def enter(self) -> Pass | None:
        """Lets a caller ask, or not (``None``); whoever is let in tells how it ended."""
        if self._open_until is None:
            return Pass.REGULAR
        if self._probing or self._timer() < self._open_until:
            return None
        self._probing = True
        return Pass.PROBE

    def succeeded(self, entered: Pass) -> None:
        """The backend answered, whatever it said.

        What a caller from before the opening tells does not close the circuit.
        """
        if entered is Pass.PROBE:
            self._probing = False
            self._open_until = None
            self._period = self._limits.open_for
        if self._open_until is None:
            self._failures = 0

    def failed(self, entered: Pass) -> None:
        """The backend could not be asked."""
        if entered is Pass.PROBE:
            self._probing = False
            self._period = min(self._period * 2, self._limits.open_max)
            self._open()
        elif self._open_until is None:
            self._failures += 1
            if self._failures >= self._limits.failures:
                self._open()

    def abandoned(self, entered: Pass) -> None:
        """Nothing was learned: the caller left, or the backend was not asked after all."""
        if entered is Pass.PROBE:
            self._probing = False

    def _open(self) -> None:
        spread = 1 + _SPREAD * (2 * self._chance() - 1)
        self._open_until = self._timer() + self._period * spread

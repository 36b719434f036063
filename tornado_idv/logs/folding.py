"""Repeated warnings and errors, folded into one line per interval with a count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

_INTERVAL = 10.0
_MAX_EVENTS = 256


@dataclass(slots=True)
class Fold:
    """An event that was written once, and how often it was repeated since."""

    logger: str
    event: str
    level: str
    until: float
    repeated: int = 0


class Folding:
    """Deduplicates log events: a repeated event is suppressed and counted.

    An event is folded for 10 s after it is written. Then ``write`` is called if it was repeated,
    from a thread of its own, and another interval begins. Of too many different events, the
    oldest is written early. ``clock`` gives seconds; ``timer`` calls a function after seconds.
    """

    def __init__(
        self,
        write: Callable[[Fold], object],
        clock: Callable[[], float] = time.monotonic,
        timer: Callable[[float, Callable[[], None]], threading.Timer] = threading.Timer,
    ) -> None:
        self._write = write
        self._clock = clock
        self._timer_type = timer
        self._timer: threading.Timer | None = None
        self._folds: dict[tuple[str, str], Fold] = {}  # the oldest first
        # Reentrant: the garbage collector may run a finalizer that logs.
        self._lock = threading.RLock()

    def admit(self, logger: str, event: str, level: str) -> bool:
        """Return whether a line is to be written; otherwise it is counted."""
        with self._lock:
            now = self._clock()
            self._end(now)
            if (fold := self._folds.get((logger, event))) is not None:
                fold.repeated += 1
                self._schedule(fold.until - now)
                return False
            if len(self._folds) >= _MAX_EVENTS:
                self._remove_oldest()
            self._folds[logger, event] = Fold(logger, event, level, now + _INTERVAL)
            return True

    def close(self) -> None:
        """Write what was repeated."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            while self._folds:
                self._remove_oldest()

    def _remove_oldest(self) -> Fold:
        fold = self._folds.pop(next(iter(self._folds)))
        if fold.repeated:
            self._write(fold)
        return fold

    def _end(self, now: float) -> None:
        """End the intervals that are over; begin another one for an event that was repeated."""
        while self._folds and next(iter(self._folds.values())).until <= now:
            fold = self._remove_oldest()
            if fold.repeated:
                fold.repeated, fold.until = 0, now + _INTERVAL
                self._folds[fold.logger, fold.event] = fold

    def _schedule(self, delay: float) -> None:
        if self._timer is None:
            timer = self._timer_type(delay, self._on_timer)
            timer.daemon = True
            with suppress(RuntimeError):  # no thread can be started now; the next event tries again
                timer.start()
                self._timer = timer

    def _on_timer(self) -> None:
        with self._lock:
            now = self._clock()
            self._timer = None
            self._end(now)
            repeated = [fold for fold in self._folds.values() if fold.repeated]
            if repeated:
                self._schedule(repeated[0].until - now)
